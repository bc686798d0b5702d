"""The KV pages held by one request, or by a session between two turns, and the requests that computed their content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from specmatrix.errors import LedgerError


@dataclass(eq=False, slots=True)
class Account:
    """Pages held by one request, or by a session between two turns. Only the ledger writes it.

    A residence is the time from an `open` or `resume` in which one request uses the account; each has a generation.
    """

    rid: int
    pages: list[int]  # shared (cached) pages first, then private ones; index i covers positions [i*P, (i+1)*P)
    shared: int  # number of leading cached pages
    committed: int  # positions whose KV belongs to accepted tokens, as known to the host
    generation: int  # of the latest residence
    start: int  # first position that this residence computes
    earlier: dict[int, int]  # first position -> earlier generation that computed the KV from there on
    in_flight: deque[int] = field(default_factory=deque)  # widths of launched, unresolved steps, oldest first
    held: bool = False  # waits for a session's next turn; no request uses it
    inherited: int = 0  # positions kept by the last hold, including those computed again after it

    @property
    def flying(self) -> int:
        """Positions that launched, unresolved steps may write."""
        return sum(self.in_flight) if self.in_flight else 0

    @property
    def computed(self) -> int:
        """Positions with KV. Recomputed positions are overwritten with the same KV, so all inherited ones count."""
        return max(self.committed, self.inherited)

    @property
    def writers(self) -> dict[int, int]:
        """First position -> generation that computes the KV from there on, for this residence."""
        return {**{first: by for first, by in self.earlier.items() if first < self.start}, self.start: self.generation}

    def left(self, keep: int) -> dict[int, int]:
        """The writers of the first `keep` positions; past this residence's committed positions, the inherited ones."""
        writers = self.writers
        for (first, by), end in zip(self.earlier.items(), [*list(self.earlier)[1:], keep], strict=False):
            if end > self.committed:
                writers[max(first, self.committed)] = by
        return spans((first, by) for first, by in writers.items() if first < keep)

    def check(self, page_size: int) -> None:
        """Raise LedgerError if law 3 or law 7 does not hold."""
        protected = self.shared * page_size
        reserved = len(self.pages) * page_size
        if not protected <= self.committed <= self.committed + self.flying <= reserved:
            raise LedgerError(
                f"law 3: request {self.rid} has protected {protected}, committed {self.committed}, "
                f"in flight {self.flying}, reserved {reserved}"
            )
        if self.held and (self.in_flight or reserved - self.committed >= page_size):
            raise LedgerError(
                f"law 7: account {self.rid} is held with {self.committed} committed, in flight {self.flying}, "
                f"reserved {reserved}"
            )


def spans(writers: Iterable[tuple[int, int]]) -> dict[int, int]:
    """First position -> generation, without consecutive repeats."""
    found: dict[int, int] = {}
    last = 0
    for first, by in writers:
        if by != last:
            found[first] = last = by
    return found
