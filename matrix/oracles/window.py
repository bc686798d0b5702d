"""The audit's pages of sliding-window layers, from the journal alone; shares no code with the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lane:
    """One account's window pages; pages[0] covers the positions from first * size."""

    first: int = 0
    pages: list[int] = field(default_factory=list)


class WindowAudit:
    """Window pages 1..`pages`; a query at position q reads from q - tokens + 1. law(holds, message) raises if not."""

    def __init__(self, tokens: int, pages: int, size: int, law: Callable[[bool, str], None]) -> None:
        self.tokens = tokens
        self.pages = pages
        self.size = size
        self.law = law
        self.owner: dict[int, int] = {}
        self.lanes: dict[int, Lane] = {}

    def open(self, account: int) -> None:
        self.lanes[account] = Lane()

    def cover(self, account: int, added: tuple[int, ...], reserved: int) -> None:
        """Add window pages up to the account's number of reserved pages."""
        lane = self.lanes[account]
        needed = reserved - lane.first - len(lane.pages)
        self.law(len(added) == needed, f"{len(added)} window pages are added; expected {needed}")
        for page in added:
            self.law(1 <= page <= self.pages, f"window page {page} does not exist")
            self.law(
                page not in self.owner,
                f"window page {page} is allocated, but belongs to account {self.owner.get(page)}",
            )
            self.owner[page] = account
        lane.pages += added

    def writes(self, account: int, end: int) -> None:
        """Check that window pages cover a step's writes up to position `end`."""
        lane = self.lanes[account]
        covered = (lane.first + len(lane.pages)) * self.size
        self.law(end <= covered, f"a step writes up to position {end}, but window pages end at {covered}")

    def slide(self, account: int, count: int, committed: int) -> None:
        """Free the first `count` pages."""
        lane = self.lanes[account]
        self.law(0 < count <= len(lane.pages), f"{count} window pages are freed; allowed: 1 to {len(lane.pages)}")
        self._free(lane.pages[:count])
        del lane.pages[:count]
        lane.first += count
        self.reads(account, committed)

    def reads(self, account: int, position: int) -> None:
        """Check that window pages cover what a query at `position` reads."""
        begin, needs = self.lanes[account].first * self.size, max(0, position - self.tokens + 1)
        self.law(
            begin <= needs, f"a query at position {position} reads from {needs}, but window pages begin at {begin}"
        )

    def room(self, account: int, position: int) -> int:
        """Number of positions before `position` whose queries still find everything that they read."""
        begin = self.lanes[account].first * self.size
        return position if begin == 0 else max(0, position - self.tokens + 1 - begin)

    def trim(self, account: int, keep: int) -> None:
        """Free the pages that hold no position below `keep`."""
        lane = self.lanes[account]
        stay = max(0, -(-keep // self.size) - lane.first)
        self._free(lane.pages[stay:])
        del lane.pages[stay:]

    def close(self, account: int) -> None:
        self._free(self.lanes.pop(account).pages)

    @property
    def held(self) -> int:
        return len(self.owner)

    def _free(self, pages: list[int]) -> None:
        for page in pages:
            del self.owner[page]
