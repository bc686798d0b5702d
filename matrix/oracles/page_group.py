"""The audit's pages of one KV group, from the journal alone; shares no code with the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

CACHE: Final = -1
STATE: Final = 2  # the kind of recurrent states


class BrokenLawError(Exception):
    """Carries a broken law's message to the audit, which adds the entry."""


def law(holds: bool, message: str) -> None:
    """BrokenLawError with the message unless the law holds."""
    if not holds:
        raise BrokenLawError(message)


@dataclass(slots=True)
class Lane:
    """One account's pages in the order of positions, from first * size on; the leading `shared` are cached."""

    pages: list[int] = field(default_factory=list)
    shared: int = 0
    first: int = 0


class PageGroupAudit:
    """Pages 1..`pages`; one without an owner is free. A query at position q reads from q - tokens + 1 on, or, with kind
    0, all positions before it; kind 2 is a `StateAudit`."""

    def __init__(self, size: int, kind: int, pages: int, tokens: int = 0, margin: int = 0) -> None:
        self.name = ("page", "window page", "state page")[kind]
        self.size, self.pages, self.tokens, self.margin = size, pages, tokens if kind else None, margin
        self.owner: dict[int, int] = {}
        self.users: dict[int, int] = {}  # cached page -> accounts that read it
        self.lanes: dict[int, Lane] = {}
        self.length: dict[int, int] = {}  # of states: positions in them, by account

    def open(self, account: int, shared: tuple[int, ...]) -> None:
        for page in shared:
            law(self.owner.get(page) == CACHE, f"{self.name} {page} is shared, but not cached")
            self.users[page] += 1
        self.lanes[account] = Lane(list(shared), len(shared))

    def cover(self, account: int, added: tuple[int, ...], end: int) -> None:
        """Add the pages that positions up to `end` need."""
        lane = self.lanes[account]
        needed = max(0, -(-end // self.size) - lane.first - len(lane.pages))
        law(len(added) == needed, f"{len(added)} {self.name}s are added; expected {needed}")
        for page in added:
            law(1 <= page <= self.pages, f"{self.name} {page} does not exist")
            owner = self.owner.get(page)
            law(owner is None, f"{self.name} {page} is allocated, but belongs to account {owner}")
            self.owner[page] = account
        lane.pages += added

    def writes(self, account: int, end: int) -> None:
        """Check that pages cover a step's writes up to position `end`."""
        lane = self.lanes[account]
        reserved = (lane.first + len(lane.pages)) * self.size
        law(end <= reserved, f"a step writes up to position {end}, but {reserved} positions have a {self.name}")

    def slide(self, account: int, freed: tuple[int, ...], committed: int) -> None:
        """Free the first pages, all that no query reads once `committed` positions are committed."""
        lane = self.lanes[account]
        law(tuple(lane.pages[: len(freed)]) == freed, f"the freed {self.name}s are not the account's first ones")
        begin = 0 if self.tokens is None else committed - self.margin - self.tokens + 1
        due = min(len(lane.pages), max(0, begin // self.size - lane.first))
        law(len(freed) >= due, f"{len(freed)} {self.name}s are freed; no query reads {due} any more")
        self._free(freed)
        del lane.pages[: len(freed)]
        lane.first += len(freed)

    def reads(self, account: int, position: int) -> None:
        """Check that there is a page for everything that a query at `position` reads."""
        lane = self.lanes[account]
        needs = 0 if self.tokens is None else max(0, position - self.tokens + 1)
        begin, end = lane.first * self.size, (lane.first + len(lane.pages)) * self.size
        law(
            begin <= needs and (needs == position or position <= end),
            f"a query at position {position} reads from {needs}, but its {self.name}s are those of {begin} to {end}",
        )

    def room(self, account: int, position: int) -> int:
        """Number of positions before `position` whose queries can still read all that they need."""
        begin = self.lanes[account].first * self.size
        return position if not begin or self.tokens is None else max(0, position - self.tokens + 1 - begin)

    def donate(self, account: int, given: tuple[int, ...], committed: int) -> None:
        """Give the account's next pages to the cache."""
        lane = self.lanes[account]
        end = lane.shared + len(given)
        law(tuple(lane.pages[lane.shared : end]) == given, f"the donated {self.name}s are not the account's next ones")
        law(
            end * self.size <= committed,
            f"{end} {self.name}s are cached, but only {committed} positions are committed",
        )
        for page in given:
            self.owner[page] = CACHE
            self.users[page] = 1
        lane.shared = end

    def cached_positions(self, account: int) -> int:
        return self.lanes[account].shared * self.size

    def trim(self, account: int, freed: tuple[int, ...], keep: int) -> None:
        """Free the pages that hold no position below `keep`."""
        lane = self.lanes[account]
        stay = max(0, -(-keep // self.size) - lane.first)
        law(freed == tuple(lane.pages[stay:]), f"the freed {self.name}s are not those after position {keep}")
        self._free(freed)
        del lane.pages[stay:]

    def close(self, account: int) -> None:
        lane = self.lanes.pop(account)
        for page in lane.pages[: lane.shared]:
            self.users[page] -= 1
        self._free(tuple(lane.pages[lane.shared :]))

    def tie(self, keys: tuple[int, ...], given: tuple[int, ...]) -> None:
        """Note which pages of the first group entered the cache with these."""

    def tied(self, keys: tuple[int, ...], pages: tuple[int, ...]) -> None:
        """Check that cached pages belong to the same positions as pages of the first group."""

    def evict(self, page: int) -> None:
        law(self.owner.get(page) == CACHE, f"{self.name} {page} is evicted, but is not cached")
        law(self.users[page] == 0, f"{self.name} {page} is evicted while {self.users[page]} accounts read it")
        del self.users[page], self.owner[page]

    def _free(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            del self.owner[page]


class StateAudit(PageGroupAudit):
    """Recurrent states, in pages that are `scale` times as long as those of the first group. A step begins at the
    positions committed by the last one, or at the end of a page of an earlier one, or at 0 with zeros."""

    def __init__(self, size: int, kind: int, pages: int, scale: int) -> None:
        super().__init__(size * scale, kind, pages)
        self.scale = scale
        self.checkpoints: dict[int, int] = {}  # last page of the first group before a cached checkpoint -> its page

    def tie(self, keys: tuple[int, ...], given: tuple[int, ...]) -> None:
        """The checkpoints `given` enter the cache with the pages `keys` of the first group."""
        law(len(given) * self.scale == len(keys), f"{len(keys)} pages are cached with {len(given)} {self.name}s")
        self.checkpoints.update(zip(keys[self.scale - 1 :: self.scale], given, strict=True))

    def tied(self, keys: tuple[int, ...], pages: tuple[int, ...]) -> None:
        """Check that cached `pages` hold the states after the tokens of the pages `keys` of the first group."""
        due = tuple(self.checkpoints.get(page, 0) for page in keys[self.scale - 1 :: self.scale])
        law(pages == due, f"the {self.name}s {pages} are used with pages that were cached with {due}")

    def slide(self, account: int, freed: tuple[int, ...], committed: int) -> None:
        law(not freed, f"the {self.name}s {freed} are freed while their account runs")
        self.length[account] = committed

    def reads(self, account: int, position: int) -> None:
        length, pages = self.length.get(account, 0), self.lanes[account].pages
        kept = position % self.size == 0 and position <= self.size * len(pages)
        law(kept or position == length, f"a step begins at position {position}, but its state is that of {length}")

    def room(self, account: int, position: int) -> int:
        return 0

    def trim(self, account: int, freed: tuple[int, ...], keep: int) -> None:
        self.reads(account, keep)
        super().trim(account, freed, keep)
        self.length[account] = keep

    def close(self, account: int) -> None:
        super().close(account)
        self.length.pop(account, None)
