"""What a workload needs of an engine: its sizes, the requests and their KV, the steps, and their totals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from specmatrix.matrix.subjects.observations import SentRequest


class WorkMismatch(Exception):
    """The engine did work other than needed. request: id of the request, 0 for none."""

    def __init__(self, message: str, request: int = 0) -> None:
        super().__init__(message)
        self.request = request


class Sizes(NamedTuple):
    """chunk: tokens of a prefill step, None for any number. rows: requests that run at once. width: positions of the
    widest round; branches: children of a node, if a row has no more nodes than what is left of its length can emit,
    else 0. span: tokens past a page that its KV depends on. window: (tokens, pages) of sliding layers. interval: tokens
    between two checkpoints of a recurrent state, 0 without states; states: how many of them there are. mixed: whether a
    prefill step advances running requests by a token too."""

    pages: int
    page: int
    chunk: int | None
    rows: int
    lag: int
    width: int
    span: int
    caches: bool
    window: tuple[int, int] | None = None
    branches: int = 0
    interval: int = 0
    states: int = 0
    mixed: bool = False

    @property
    def unit(self) -> int:
        """Pages that enter and leave the cache at once."""
        return self.interval // self.page if self.interval and self.caches else 1

    @property
    def overrun(self) -> int:
        """Positions that a request may need past its known tokens: a round for each step that may be in flight."""
        return (self.lag + 1) * self.width


class Launched(NamedTuple):
    """One request in one step. end: upper bound of the KV length, as known to the host."""

    request: int
    width: int
    end: int


@dataclass(eq=False, slots=True)
class PlannedRequest:
    """A request: `final` is the number of output tokens after which it ends, unless it is aborted earlier."""

    sent: SentRequest
    name: str
    tokens: tuple[int, ...]  # prompt and whole output
    final: int
    out: int = 0
    running: bool = False
    draining: bool = False
    retracting: bool = False
    aborted: bool = False
    prefilled: int = 0
    target: int = 0
    inherited: int = 0
    scored: int = 0  # end of the prompt positions whose next token has its log-probability

    @property
    def known(self) -> int:
        return len(self.sent.prompt) + self.out

    @property
    def text(self) -> tuple[int, ...]:
        return self.tokens[: self.known]

    @property
    def unscored(self) -> int | None:
        """Index of the first prompt token that still needs its log-probability, None if none does."""
        first = max(self.sent.scored_from, self.scored)
        return first if self.sent.scored_from >= 0 and first < len(self.sent.prompt) else None

    @property
    def readable(self) -> tuple[int, ...]:
        """The tokens of which all but the last may be read from the cache; stops at the first prompt token whose
        log-probability is missing, as that needs the position before it computed."""
        return self.text if self.unscored is None else self.tokens[: max(self.unscored, 1)]

    @property
    def decoding(self) -> bool:
        return self.running and self.prefilled == self.target


@dataclass(eq=False, slots=True)
class KVRow:
    """An account: `shared` cached units of `unit` pages, each named by its first page, `own` private pages, and the
    steps in flight. state: positions in the live state, -1 if it is none."""

    shared: list[int]
    unit: int
    own: int = 0
    committed: int = 0
    kept: int = 0
    state: int = -1
    flights: deque[tuple[PlannedRequest, bool, Launched]] = field(default_factory=deque)

    @property
    def pages(self) -> int:
        return len(self.shared) * self.unit + self.own

    @property
    def end(self) -> int:
        return self.committed + sum(one.width for _, _, one in self.flights)


class NeededStep(NamedTuple):
    """The rows that one step launches, each padded to `width` positions. scored: whether log-probabilities of prompt
    tokens are needed."""

    prefill: bool
    rows: tuple[Launched, ...]
    width: int
    scored: bool = False

    @property
    def end(self) -> int:
        """Upper bound of the positions that its rows may need, with their padding in a round."""
        ends = [row.end if self.prefill else row.end - row.width + self.width for row in self.rows]
        return max(ends)


@dataclass(slots=True)
class WorkDone:
    """Totals of the work done. held: peak number of pages in use. overlapped: steps launched before the one before was
    read."""

    computed: int = 0
    reused: int = 0
    evicted: int = 0
    retracted: int = 0
    dropped: int = 0
    steps: list[NeededStep] = field(default_factory=list)
    held: int = 0
    overlapped: int = 0
