"""What a workload needs of an engine: its sizes, the steps, and their totals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class WorkMismatch(Exception):
    """The engine did work other than needed. request: id of the request, 0 for none."""

    def __init__(self, message: str, request: int = 0) -> None:
        super().__init__(message)
        self.request = request


class Sizes(NamedTuple):
    """chunk: tokens of a prefill step, None for any number. rows: requests that run at once. width: positions of the
    widest round; branches: children of a node, if a row has no more nodes than what is left of its length can emit,
    else 0. span: tokens past a page that its KV depends on. window: (tokens, pages) of sliding layers. recurrent: a
    session keeps a state, so it continues at its last committed position or not at all."""

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
    recurrent: bool = False

    @property
    def overrun(self) -> int:
        """Positions that a request may need past its known tokens: a round for each step that may be in flight."""
        return (self.lag + 1) * self.width


class Launched(NamedTuple):
    """One request in one step. end: upper bound of the KV length, as known to the host."""

    request: int
    width: int
    end: int


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
