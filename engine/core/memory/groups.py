"""KV groups: layers whose queries read the same earlier positions, or a state. Each group has pages of its own.

An account has an entry in every group. What a kind of group keeps, reads and needs is in its class; no other code asks
which kind a group is.

The KV held by one request, or by a session between two turns, and the requests that computed its content.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from specmatrix.errors import LedgerError


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


FREE: Final = 0
CACHE: Final = -1


class PageCounts(NamedTuple):
    """How many pages there are, and how many are free and cached."""

    pages: int
    free: int
    cached: int

    @property
    def held(self) -> int:
        """Pages that accounts own; lost ones would count too."""
        return self.pages - self.free - self.cached


class PageGroup(ABC):
    """A group's pages, numbered from 1, as page 0 is padding on the device. Each is owned by FREE, CACHE or an account.

    name: in messages. fix: what a user changes if a request needs more pages than there are. sets_aside: admission
    frees all pages that the running requests may still need, so that none is retracted for lack of them. rewinds: a
    turn can compute the last positions of its session again. cached: its pages enter the prefix cache with those of the
    first group. scale: pages of the first group that cover the positions of one page.
    """

    name: ClassVar[str]
    fix: ClassVar[str]
    sets_aside: ClassVar[bool] = False
    rewinds: ClassVar[bool] = True
    cached: ClassVar[bool] = True
    scale: int = 1

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise LedgerError(f"a group needs at least one page of at least one token, got {num_pages} x {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.owner: list[int] = [FREE] * (num_pages + 1)
        self.free: list[int] = list(range(num_pages, 0, -1))
        self.pins: dict[int, int] = {}  # cached page -> number of accounts that use it
        self.writer: dict[int, int] = {}  # cached page -> generation that computed it

    @property
    def sizes(self) -> tuple[int, ...]:
        """The group's record in the journal: its class as an index into KINDS, and all sizes except the page size."""
        return KINDS.index(type(self)), self.num_pages

    @property
    def counts(self) -> PageCounts:
        return PageCounts(self.num_pages, len(self.free), len(self.pins))

    @property
    def evictable(self) -> int:
        """Cached pages that no account uses."""
        return sum(not users for users in self.pins.values())

    @abstractmethod
    def reads_from(self, position: int) -> int:
        """First position that a query at `position` reads."""

    @abstractmethod
    def budget(self, known: int, longest: int, flying: int) -> int:
        """Pages that an admitted request must be able to get. known: positions that it needs for its tokens so far;
        longest: for all that it may ever have; flying: most positions of unresolved steps."""

    def missing(self, own: GroupPages, end: int) -> int:
        """Pages that covering every position below `end` adds."""
        more = -(-end // self.page_size) - own.first - len(own.pages)
        return more if more > 0 else 0

    def cover(self, rid: int, own: GroupPages, end: int) -> tuple[int, ...]:
        """Add the missing pages, which must be free, and return them."""
        more = self.missing(own, end)
        if not more:
            return ()
        added = tuple([self.free.pop() for _ in range(more)])
        for page in added:
            self.owner[page] = rid
        own.pages.extend(added)
        return added

    @abstractmethod
    def slide(self, own: GroupPages, committed: int) -> tuple[int, ...]:
        """Free the pages that no later query reads once `committed` positions are committed, and return them."""

    def trim(self, own: GroupPages, keep: int) -> tuple[int, ...]:
        """Free the pages that hold no position below `keep`, and return them."""
        stay = max(0, -(-keep // self.page_size) - own.first)
        gone = own.pages[stay:]
        del own.pages[stay:]
        return self._give_back(gone)

    def reaches(self, own: GroupPages, position: int) -> bool:
        """Whether every position that a query at `position` reads has a page."""
        begin = self.reads_from(position)
        return own.first * self.page_size <= begin and (begin == position or position <= own.end * self.page_size)

    def reach(self, own: GroupPages, position: int) -> int:
        """The last position up to `position` whose query finds all that it reads, -1 if there is none. `position`: at
        most the committed ones."""
        return position if self.reaches(own, position) else -1

    def chunk_end(self, start: int, end: int) -> int:
        """Where a prefill chunk from `start` ends at the latest, if it could go on to `end`."""
        return end

    def beside(self, pages: Sequence[int]) -> list[int]:
        """The group's cached pages for the positions of cached pages of the first group."""
        return list(pages)

    def tie(self, pages: Sequence[int], given: Sequence[int]) -> None:  # noqa: B027 - most groups need not know
        """Remember which pages of the first group entered the cache with the `given` ones."""

    def donate(self, own: GroupPages, count: int, generation: int) -> tuple[int, ...]:
        """Transfer the first `count` private pages to the cache; the account keeps using them, pinned."""
        given = tuple(own.pages[own.shared : own.shared + count])
        for page in given:
            self.owner[page], self.pins[page], self.writer[page] = CACHE, 1, generation
        own.shared += count
        return given

    def evict(self, page: int) -> None:
        """Free a cached page that no account uses."""
        del self.pins[page], self.writer[page]
        self._give_back([page])

    def close(self, own: GroupPages) -> None:
        """Unpin an account's cached pages and free its private ones."""
        for page in own.pages[: own.shared]:
            self.pins[page] -= 1
        self._give_back(own.pages[own.shared :])

    def _give_back(self, pages: Sequence[int]) -> tuple[int, ...]:
        for page in reversed(pages):
            self.owner[page] = FREE
            self.free.append(page)
        return tuple(pages)

    def check(self, entries: Sequence[tuple[Account, GroupPages]]) -> None:
        """Raise LedgerError naming the first law that does not hold. entries: of all accounts in this group."""
        owned: dict[int, int] = {}
        users: Counter[int] = Counter()
        for account, own in entries:
            for page in own.pages[own.shared :]:
                if page in owned:
                    raise LedgerError(
                        f"law 2: {self.name} page {page} is in the rows of {owned[page]} and {account.rid}"
                    )
                owned[page] = account.rid
            users.update(own.pages[: own.shared])
            self.check_entry(account, own)
        self._check_owners(owned)
        for page, pins in self.pins.items():
            if pins != users[page]:
                raise LedgerError(f"law 4: {self.name} page {page} has {pins} pins, but {users[page]} users")

    def check_entry(self, account: Account, own: GroupPages) -> None:
        """The laws of one account."""
        rid, committed, size = account.rid, account.committed, self.page_size
        for page in own.pages[: own.shared]:
            if page not in self.pins:
                raise LedgerError(f"law 4: account {rid} uses {self.name} page {page}, which is not cached")
        for page in own.pages[own.shared :]:
            if not 1 <= page <= self.num_pages or self.owner[page] != rid:
                raise LedgerError(f"law 1: account {rid} has {self.name} page {page}, which is not recorded as its own")
        if committed < own.shared * size:
            raise LedgerError(
                f"law 5: account {rid} has {committed} positions committed, and {own.shared * size} in cached pages"
            )
        if account.end > own.end * size or own.end != -(-account.groups[0].end // self.scale):
            raise LedgerError(
                f"law 3: account {rid} has {committed} positions committed, {account.flying} in flight, and "
                f"{own.end * size} reserved in {self.name} pages, of {account.groups[0].end * size} in all groups"
            )
        self.check_reads(account, own)
        if account.held and (account.in_flight or own.end * size - committed >= size):
            raise LedgerError(
                f"law 7: account {rid} is held with {committed} positions committed, {account.flying} in flight, and "
                f"{own.end * size} reserved in {self.name} pages"
            )

    def check_reads(self, account: Account, own: GroupPages) -> None:
        """Law 6."""
        if not self.reaches(own, account.committed):
            raise LedgerError(
                f"law 6: account {account.rid} has {account.committed} positions committed, and a query there reads "
                f"from {self.reads_from(account.committed)}, but its {self.name} pages begin at "
                f"{own.first * self.page_size}"
            )

    def _check_owners(self, owned: Mapping[int, int]) -> None:
        """Law 1. Goes page by page only if a count is wrong: the counts alone need no loop over the pool."""
        free = set(self.free)
        held = {**dict.fromkeys(self.pins, CACHE), **owned}
        whole = (
            len(self.free) + len(self.pins) + len(owned) == len(free) + len(held) == self.num_pages
            and self.owner.count(FREE) == len(free) + 1
            and free.isdisjoint(held)
            and all(self.owner[page] == owner for page, owner in held.items())
        )
        if whole:
            return
        claims = Counter([*self.free, *self.pins, *owned])
        for page in sorted({*claims, *range(1, self.num_pages + 1)}):
            if not 1 <= page <= self.num_pages:
                raise LedgerError(
                    f"law 1: {self.name} page {page} has {claims[page]} owners, and there are {self.num_pages} pages"
                )
            if claims[page] != 1 or self.owner[page] != held.get(page, FREE):
                raise LedgerError(
                    f"law 1: {self.name} page {page} has {claims[page]} owners and is recorded for {self.owner[page]}"
                )


class FullAttention(PageGroup):
    """Layers that read every earlier position. A request is admitted with pages for its tokens so far; retraction makes
    room for more."""

    name = "full-attention"
    fix = "raise max_total_tokens or shorten the request"

    def reads_from(self, position: int) -> int:
        return 0

    def slide(self, own: GroupPages, committed: int) -> tuple[int, ...]:
        return ()

    def budget(self, known: int, longest: int, flying: int) -> int:
        return -(-known // self.page_size)


class SlidingWindow(PageGroup):
    """Layers that read the last `tokens` positions, the query's own included.

    margin: committed positions that a rollback may still undo (sglang#22900 freed by an uncapped frontier). A request
    is admitted only if it can get the most pages that it ever needs at once.
    """

    name = "sliding-window"
    fix = "raise swa_full_tokens_ratio or lower chunked_prefill_size"
    sets_aside = True
    cached = False

    def __init__(self, num_pages: int, page_size: int, tokens: int, margin: int = 0) -> None:
        super().__init__(num_pages, page_size)
        if tokens < 1 or margin < 0:
            raise LedgerError(f"a sliding window needs at least one token, got {tokens} with a margin of {margin}")
        self.tokens, self.margin = tokens, margin

    @property
    def sizes(self) -> tuple[int, ...]:
        return *super().sizes, self.tokens, self.margin

    def reads_from(self, position: int) -> int:
        return max(0, position - self.tokens + 1)

    def beside(self, pages: Sequence[int]) -> list[int]:
        return []

    def slide(self, own: GroupPages, committed: int) -> tuple[int, ...]:
        gone = self.keeps_from(committed) // self.page_size - own.first
        if gone <= 0:
            return ()
        freed = own.pages[:gone]
        del own.pages[:gone]
        own.first += len(freed)
        return self._give_back(freed)

    def keeps_from(self, committed: int) -> int:
        """First position that a query may still read, also after a rollback."""
        return self.reads_from(committed - self.margin)

    def budget(self, known: int, longest: int, flying: int) -> int:
        return min(-(-longest // self.page_size), window_peak(self.tokens + self.margin + flying, self.page_size))


class RecurrentState(PageGroup):
    """Layers with a state that replaces all earlier positions. A page is as long as `scale` pages of the first group,
    and holds the state after the last committed token within it: the live one, or a checkpoint at the page's end.

    Only committed tokens advance a state, and it cannot go back: a step can begin at its length, at a checkpoint, or at
    0 with zeros. So that every page that is left holds its checkpoint, prefill chunks end where pages do, and a page is
    at least as long as a round.
    """

    name = "recurrent-state"
    fix = "raise max_total_tokens or shorten the request"
    rewinds = False

    def __init__(self, num_pages: int, page_size: int, scale: int) -> None:
        super().__init__(num_pages, page_size * scale)
        self.scale = scale
        self._tied: dict[int, int] = {}  # last page of the first group in a cached page's positions -> that page

    @property
    def sizes(self) -> tuple[int, ...]:
        return *super().sizes, self.scale

    def reads_from(self, position: int) -> int:
        return position

    def slide(self, own: GroupPages, committed: int) -> tuple[int, ...]:
        own.length = committed
        return ()

    def trim(self, own: GroupPages, keep: int) -> tuple[int, ...]:
        own.length = keep if own.length == keep else -1
        return super().trim(own, keep)

    def reach(self, own: GroupPages, position: int) -> int:
        return position if position == own.length else min(position // self.page_size, own.end) * self.page_size

    def reaches(self, own: GroupPages, position: int) -> bool:
        return self.reach(own, position) == position

    def chunk_end(self, start: int, end: int) -> int:
        return min(end, (start // self.page_size + 1) * self.page_size)

    def beside(self, pages: Sequence[int]) -> list[int]:
        return [self._tied[page] for page in pages[self.scale - 1 :: self.scale]]

    def tie(self, pages: Sequence[int], given: Sequence[int]) -> None:
        self._tied.update(zip(pages[self.scale - 1 :: self.scale], given, strict=True))

    def budget(self, known: int, longest: int, flying: int) -> int:
        return -(-known // self.page_size)

    def check_reads(self, account: Account, own: GroupPages) -> None:
        if own.length not in (-1, account.committed):
            raise LedgerError(
                f"law 6: account {account.rid} has {account.committed} positions committed, and a {self.name} of "
                f"{own.length}"
            )


KINDS: Final[tuple[type[PageGroup], ...]] = (FullAttention, SlidingWindow, RecurrentState)


def page_groups(
    pages: int, page_size: int, window: int | None, window_pages: int, margin: int, states: int = 0, scale: int = 1
) -> list[PageGroup]:
    """The groups of an engine's layers, those without a window first. window: its tokens, None without such layers.
    states: how many recurrent states there are, 0 without such layers; a checkpoint ends every `scale` pages."""
    groups: list[PageGroup] = [FullAttention(pages, page_size)]
    if window is not None:
        groups.append(SlidingWindow(window_pages, page_size, window, margin))
    if states:
        groups.append(RecurrentState(states, page_size, scale))
    return groups


def window_peak(live: int, page_size: int) -> int:
    """Pages for `live` positions, and one more because they may start within a page."""
    return -(-live // page_size) + 1


def window_pages(
    tokens: int | None, *, pages: int, page_size: int, ratio: float, rows: int, steps: int, width: int, chunk: int
) -> int:
    """Number of pages for an engine's windowed layers, 0 if there are none (tokens None).

    The maximum that `rows` requests can hold at once with `steps` prefill chunks or rounds of `width` in flight, but at
    most `ratio` (SGLang's swa_full_tokens_ratio) times the `pages` of the other layers, and at least one.
    """
    if tokens is None:
        return 0
    peak = window_peak(tokens + steps * (width + max(width, chunk)), page_size)
    return max(1, min(math.ceil(ratio * pages), rows * peak))
