"""The KV held by one request, or by a session between two turns, and the requests that computed its content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class GroupPages:
    """An account's entry in a KV group: pages[i] covers positions [(first + i) * P, (first + i + 1) * P).

    The leading `shared` pages are the cache's, the others private. length: tokens in the live recurrent state, -1
    without one.
    """

    pages: list[int] = field(default_factory=list)
    first: int = 0
    shared: int = 0
    length: int = -1

    @property
    def end(self) -> int:
        """Index of the page after the last one."""
        return self.first + len(self.pages)


@dataclass(eq=False, slots=True)
class Account:
    """KV held by one request, or by a session between two turns. Only the ledger writes it.

    A residence is the time from an `open` or `resume` in which one request uses the account; each has a generation.
    """

    rid: int
    groups: tuple[GroupPages, ...]  # one entry per group of the ledger
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
    def end(self) -> int:
        """Position after everything in flight."""
        return self.committed + (sum(self.in_flight) if self.in_flight else 0)

    @property
    def computed(self) -> int:
        """Positions with KV. Recomputed positions are overwritten with the same KV, so all inherited ones count."""
        return max(self.committed, self.inherited)

    @property
    def writers(self) -> dict[int, int]:
        """First position -> generation that computes the KV from there on, for this residence."""
        return {**{first: by for first, by in self.earlier.items() if first < self.start}, self.start: self.generation}

    def left(self, keep: int) -> dict[int, int]:
        """Writers of the first `keep` positions; past this residence's committed positions, the inherited writers."""
        writers = self.writers
        for (first, by), end in zip(self.earlier.items(), [*list(self.earlier)[1:], keep], strict=False):
            if end > self.committed:
                writers[max(first, self.committed)] = by
        return spans((first, by) for first, by in writers.items() if first < keep)


def spans(writers: Iterable[tuple[int, int]]) -> dict[int, int]:
    """First position -> generation, without consecutive repeats."""
    found: dict[int, int] = {}
    last = 0
    for first, by in writers:
        if by != last:
            found[first] = last = by
    return found
