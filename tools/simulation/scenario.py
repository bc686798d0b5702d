"""A schedule as data: an engine's sizes and timed events. `draw` generates it from a seed, `shrink` reduces it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from tools.simulation.toy import VOCAB

BOS: Final = 3
SHARED: Final = (3, 1, 4, 1, 5, 9, 2, 6)
MAX_NEW: Final = 14
CROWDED: Final = 0.2  # the share of schedules that begin with more requests than memory holds
# Where an abort may find a request: queued, in its prompt or output, or with steps in flight, stopped or retracted.
PHASES: Final = ("waiting", "prefill", "decoding", "draining", "retracting")
STOPS: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("ab",), ("c",), ("dd", "ef"))


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """Sizes of one engine. page_size and window in tokens (window None: no windowed layers).

    steps: draft depth; adaptive: it varies between 1 and 3. rows: max_running_requests. spare_window: window pages
    beyond one row's need. timeout: idle steps after which a session closes.
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
    """A request arrives. session: the streaming session whose next turn it is, None for an ordinary request.

    A session that is not open is opened first.
    """

    at: int
    tokens: tuple[int, ...]
    new: int
    stop: tuple[str, ...] = ()
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The `request`-th arriving request is aborted; no effect if it was refused or has ended. phase: one of `PHASES`,
    which the abort waits for, "retracting" of any request; "" for the step `at`."""

    at: int
    request: int
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """A session is closed, even during a turn; no effect if it is not open."""

    at: int
    session: int


Event = ArrivingRequest | Abort | Close


@dataclass(frozen=True, slots=True)
class Scenario:
    """A setup and its events, ordered by step."""

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
        return "\n".join([sizes, *(f"  step {event.at}: {_text(event)}" for event in self.events)])


def _text(event: Event) -> str:
    if isinstance(event, Abort):
        when = f" once it is {event.phase}" if event.phase else ""
        return f"abort request {event.request + 1}{when}"
    if isinstance(event, Close):
        return f"close session {event.session}"
    kind = "request" if event.session is None else f"turn of session {event.session}"
    stop = f", stop {list(event.stop)}" if event.stop else ""
    return f"{kind} with tokens {list(event.tokens)}, max_new_tokens {event.new}{stop}"


def draw(seed: int, lag: int | None = None) -> Scenario:
    """The schedule of a seed, deterministic on every machine. lag: instead of the drawn one."""
    rng, phases = random.Random(seed), random.Random(f"phases of {seed}")
    size = rng.choice((1, 1, 2, 3, 4, 8))
    window = rng.choice((None, None, None, None, 1, 3, 6))
    drawn = rng.choice((0, 1, 1, 2, 3))
    setup = SimulationSetup(
        lag=drawn if lag is None else lag,
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
    if phases.random() < CROWDED:
        setup, events = _crowded(setup, phases)
        asked = len(events)
        events.append(Abort(0, 0, phases.choice(("retracting", ""))))
    for _ in range(rng.randrange(2, 10)):
        what = rng.random()
        if what < 0.2 and asked:
            at += rng.randrange(1, 6)
            phase = phases.choice(("", "", "", *PHASES))
            events.append(Abort(at, max(0, asked - rng.choice((1, 1, 1, 2, 3))), phase))
        elif what < 0.25:
            at += rng.randrange(5)
            events.append(Close(at, rng.randrange(2)))
        else:
            session = rng.choice((None, None, 0, 0, 0, 1))
            at += rng.choice((0, 0, 0, 2)) if session is None else rng.choice((0, 2, 6, 12))
            events.append(ArrivingRequest(at, _prompt(rng), rng.randrange(1, MAX_NEW + 1), rng.choice(STOPS), session))
            asked += 1
    return Scenario(setup, tuple(events))


def _crowded(setup: SimulationSetup, rng: random.Random) -> tuple[SimulationSetup, list[Event]]:
    """The setup with memory for one of three long requests that arrive together, so that some are retracted."""
    overrun = (setup.lag + 1) * (4 if setup.adaptive else setup.steps + 1)
    room = len(SHARED) + MAX_NEW + overrun + rng.randrange(8)
    events = [ArrivingRequest(0, _prompt(rng), MAX_NEW) for _ in range(3)]
    return replace(setup, pages=-(-room // setup.page_size), rows=3), [*events]


def _prompt(rng: random.Random) -> tuple[int, ...]:
    """A few tokens, in some prompts after a common prefix."""
    shared = SHARED[: rng.randrange(len(SHARED) + 1)] if rng.random() < 0.4 else ()
    return (*shared, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 7))))
