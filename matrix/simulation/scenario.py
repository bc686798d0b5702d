"""One schedule as data: an engine's sizes and what happens at which step. A seed draws it, `shrink` cuts it down."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from specmatrix.matrix.simulation.toy import VOCAB

BOS: Final = 3
SHARED: Final = (3, 1, 4, 1, 5, 9, 2, 6)
STOPS: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("ab",), ("c",), ("dd", "ef"))


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """Sizes of one engine. pages and page_size in pages and tokens; window in tokens (None: no windowed layers).

    steps: draft depth; adaptive lets it move between 1 and 3. spare_window: window pages beyond what one row needs.
    timeout: steps after which an idle session closes.
    """

    lag: int = 0
    page_size: int = 1
    pages: int = 60
    steps: int = 0
    adaptive: bool = False
    rows: int = 4
    chunk: int | None = None
    cache: bool = False
    key_span: int = 0
    eos: bool = False
    window: int | None = None
    spare_window: int = 0
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ArrivingRequest:
    """A request arrives. session: which streaming session's next turn it is, None for a plain one.

    A session that is not open is opened first.
    """

    at: int
    tokens: tuple[int, ...]
    new: int
    stop: tuple[str, ...] = ()
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """What the `request`-th ask brought is aborted; nothing happens if it was refused or has ended."""

    at: int
    request: int


@dataclass(frozen=True, slots=True)
class Close:
    """A session is closed, whatever it does; nothing happens if it is not open."""

    at: int
    session: int


Event = ArrivingRequest | Abort | Close


@dataclass(frozen=True, slots=True)
class Scenario:
    """A setup and its events in the order of their steps."""

    setup: SimulationSetup
    events: tuple[Event, ...]

    def text(self) -> str:
        """The schedule, one line per event."""
        defaults = SimulationSetup()
        sizes = ", ".join(
            f"{name} {getattr(self.setup, name)}"
            for name in SimulationSetup.__slots__
            if getattr(self.setup, name) != getattr(defaults, name) or name in ("lag", "page_size", "pages", "steps")
        )
        return "\n".join([sizes, *(f"  step {event.at}: {_said(event)}" for event in self.events)])


def _said(event: Event) -> str:
    if isinstance(event, Abort):
        return f"abort request {event.request + 1}"
    if isinstance(event, Close):
        return f"close session {event.session}"
    whose = "a plain request" if event.session is None else f"a turn of session {event.session}"
    stop = f", stop {list(event.stop)}" if event.stop else ""
    return f"{whose} asks {list(event.tokens)}, at most {event.new} new{stop}"


def draw(seed: int) -> Scenario:
    """The schedule of a seed: the same one everywhere and always."""
    rng = random.Random(seed)
    size = rng.choice((1, 1, 2, 3, 4, 8))
    window = rng.choice((None, None, None, None, 1, 3, 6))
    setup = SimulationSetup(
        lag=rng.choice((0, 1, 1, 2, 3)),
        page_size=size,
        pages=max(2, rng.randrange(20, 60) // size),
        steps=rng.choice((0, 1, 2, 4)),
        adaptive=rng.random() < 0.3,
        rows=rng.randrange(1, 5),
        chunk=rng.choice((None, 1, 3, 5)),
        cache=rng.random() < 0.6,
        key_span=rng.randrange(3),
        eos=rng.random() < 0.25,
        window=window,
        spare_window=rng.randrange(6),
        timeout=rng.choice((None, None, 4)),
    )
    events: list[Event] = []
    at = asked = 0
    for _ in range(rng.randrange(2, 10)):
        what = rng.random()
        if what < 0.2 and asked:
            at += rng.randrange(1, 6)
            events.append(Abort(at, max(0, asked - rng.choice((1, 1, 1, 2, 3)))))
        elif what < 0.25:
            at += rng.randrange(5)
            events.append(Close(at, rng.randrange(2)))
        else:
            session = rng.choice((None, None, 0, 0, 0, 1))
            at += rng.choice((0, 0, 0, 2)) if session is None else rng.choice((0, 2, 6, 12))
            events.append(ArrivingRequest(at, _prompt(rng), rng.randrange(1, 15), rng.choice(STOPS), session))
            asked += 1
    return Scenario(setup, tuple(events))


def _prompt(rng: random.Random) -> tuple[int, ...]:
    """A few tokens, some behind a beginning that many prompts share."""
    shared = SHARED[: rng.randrange(len(SHARED) + 1)] if rng.random() < 0.4 else ()
    return (*shared, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 7))))
