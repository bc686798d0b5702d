"""KV ownership as a pure ledger: few operations, a journal of them, and laws that hold after every operation.

The journal is a stream: subscribers receive every entry, and the ledger itself keeps only the latest ones.

Pages are numbered 1..num_pages; page 0 is padding on the device and has no owner. Counts are token positions.

Laws (`check`):
1. each page has exactly one owner: free, the cache, or one account;
2. a private page is in exactly one row;
3. protected <= committed <= committed + in flight <= reserved;
4. pins equal the number of rows that use a cached page, and only unpinned pages are evicted;
5. a cached page is complete: every row that uses it has committed all of its positions;
6. with a sliding window an account owns the window pages of every position that a later query reads
   (`window_ledger.py`);
7. a held account has nothing in flight and no page past its committed positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from specmatrix.engine.core.memory.account import Account, spans
from specmatrix.engine.core.memory.window_ledger import Window, WindowLedger
from specmatrix.errors import EngineError, LedgerError

KEPT: Final = 4096  # most recent journal entries kept
FREE: Final = 0
CACHE: Final = -1

Entry = tuple[str, int, tuple[int, ...]]  # operation, request id (0 for none), arguments and results


class OutOfPages(Exception):
    """A reservation needs more pages than are free. Nothing was changed."""


class Ledger:
    """Page ownership. `strict` checks every law after every operation. `window`: the sliding-window layers' page pool.

    Raises LedgerError, a bug in the caller, on an operation that its account or page does not allow; nothing has
    changed then.
    """

    def __init__(self, num_pages: int, page_size: int, strict: bool = False, window: Window | None = None) -> None:
        if num_pages < 1 or page_size < 1:
            raise LedgerError(f"a ledger needs at least one page of at least one token, got {num_pages} x {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.strict = strict
        self.owner: list[int] = [FREE] * (num_pages + 1)
        self.free: list[int] = list(range(num_pages, 0, -1))
        self.pins: dict[int, int] = {}  # cached page -> number of rows that use it
        self.writer: dict[int, int] = {}  # cached page -> generation that computed it
        self._generations = count(1)
        self.accounts: dict[int, Account] = {}
        self._journal: deque[Entry] = deque(maxlen=KEPT)
        self._entries = 0
        self._subscribers: list[Callable[[Entry], None]] = []
        self.window: WindowLedger | None = None
        if window is not None:
            self.window = WindowLedger(window, page_size)
            self._record("window", 0, (window.tokens, window.pages, window.margin))

    @property
    def journal(self) -> list[Entry]:
        """Every entry so far. EngineError once the oldest were discarded; the latest KEPT are kept."""
        if self._entries > KEPT:
            raise EngineError(
                f"the journal keeps only the latest {KEPT} of its {self._entries} entries; subscribe earlier"
            )
        return list(self._journal)

    def subscribe(self, subscriber: Callable[[Entry], None]) -> None:
        """Call `subscriber` with every entry, past ones first. EngineError once the oldest were discarded."""
        for entry in self.journal:
            subscriber(entry)
        self._subscribers.append(subscriber)

    def open(self, rid: int, shared: Sequence[int] = ()) -> Account:
        """Open an account that starts with cached pages, all of them complete."""
        if rid <= 0 or rid in self.accounts:
            raise LedgerError(f"open: request id {rid} is not a new positive id")
        for page in shared:
            self._demand_cached("open", page)
        if self.window is not None:
            if shared:
                raise LedgerError(f"open: cached pages {list(shared)} lack KV that the windowed layers read")
            self.window.open(rid)
        for page in shared:
            self.pins[page] += 1
        begin = len(shared) * self.page_size
        earlier = spans((index * self.page_size, self.writer[page]) for index, page in enumerate(shared))
        account = Account(rid, list(shared), len(shared), begin, next(self._generations), begin, earlier)
        self.accounts[rid] = account
        self._record("open", rid, tuple(shared))
        return account

    def shortfall(self, rid: int, width: int) -> int:
        """Free pages missing for a step of `width` positions after everything in flight (0: it fits)."""
        short = self.growth(rid, width) - len(self.free)
        return short if short > 0 else 0

    def growth(self, rid: int, width: int) -> int:
        """Pages that a step of `width` positions after everything in flight would add."""
        return self._growth(self._account(rid), width)

    def _growth(self, account: Account, width: int) -> int:
        if width < 1:
            raise LedgerError(f"reserve: request {account.rid} requested {width} positions")
        end = account.committed + account.flying + width
        more = -(-end // self.page_size) - len(account.pages)
        return more if more > 0 else 0

    def reserve(self, rid: int, width: int) -> tuple[int, ...]:
        """Reserve every position up to committed + in flight + width. Returns the pages added.

        Raises OutOfPages without changing anything.
        """
        account = self._used(rid)
        grow = self._growth(account, width)
        free = self.free
        if grow > len(free):
            raise OutOfPages(f"request {rid} needs {grow} pages, {len(free)} are free")
        added = (free.pop(),) if grow == 1 else tuple([free.pop() for _ in range(grow)])
        for page in added:
            self.owner[page] = rid
        account.pages.extend(added)
        self._record("reserve", rid, (width, *added))
        return added

    def cover(self, rid: int) -> tuple[int, ...]:
        """Reserve the window pages of every reserved position that is still read. Returns the pages added."""
        if self.window is None:
            return ()
        added = self.window.cover(rid, len(self._used(rid).pages) * self.page_size)
        if added:
            self._record("cover", rid, added)
        return added

    def slide(self, rid: int) -> int:
        """Free the window pages that no later query of the account reads. Returns their number."""
        if self.window is None:
            return 0
        # Earlier steps in flight may still read older positions, so only committed positions count.
        freed = self.window.slide(rid, self._account(rid).committed)
        if freed:
            self._record("slide", rid, (freed,))
        return freed

    def launch(self, rid: int, width: int) -> int:
        """Record the launch of a step that writes up to `width` positions. Returns the bound on the KV length."""
        account = self._used(rid)
        bound = account.committed + account.flying + width
        if width < 1 or bound > len(account.pages) * self.page_size:
            raise LedgerError(
                f"launch: request {rid} would write {width} positions after "
                f"{account.committed} + {account.flying} of {len(account.pages) * self.page_size} reserved"
            )
        if self.window is not None and self.window.missing(rid, bound):
            raise LedgerError(f"launch: request {rid} would write {width} positions without window pages")
        account.in_flight.append(width)
        self._record("launch", rid, (width,))
        return bound

    def settle(self, rid: int, accepted: int) -> None:
        """Record that the oldest launched step of `rid` resolved with `accepted` positions kept."""
        account = self._account(rid)
        if not account.in_flight:
            raise LedgerError(f"settle: request {rid} has nothing in flight")
        width = account.in_flight[0]
        if not 0 <= accepted <= width:
            raise LedgerError(f"settle: request {rid} accepted {accepted} of a step of width {width}")
        account.in_flight.popleft()
        account.committed += accepted
        self._record("settle", rid, (accepted,))

    def cancel(self, rid: int) -> None:
        """Record that the newest launched step of `rid` never resolves: none of its positions are kept."""
        account = self._account(rid)
        if not account.in_flight:
            raise LedgerError(f"cancel: request {rid} has nothing in flight")
        width = account.in_flight.pop()
        self._record("cancel", rid, (width,))

    def donate(self, rid: int, count: int) -> tuple[int, ...]:
        """Transfer the first `count` private pages to the cache; the row keeps using them, pinned."""
        account = self._used(rid)
        end = account.shared + count
        if account.inherited:
            raise LedgerError(f"donate: account {rid} was held, so its pages may have several writers")
        if count < 0 or end * self.page_size > account.committed:
            raise LedgerError(
                f"donate: request {rid} has {account.committed} positions committed, less than {end} whole pages"
            )
        given = tuple(account.pages[account.shared : end])
        for page in given:
            self.owner[page] = CACHE
            self.pins[page] = 1
            self.writer[page] = account.generation
        account.shared = end
        self._record("donate", rid, (count, *given))
        return given

    def hold(self, rid: int, keep: int) -> tuple[int, ...]:
        """Keep the account without a request: its first `keep` positions and their pages. Returns the pages freed."""
        account = self._used(rid)
        protected = account.shared * self.page_size
        if account.in_flight:
            raise LedgerError(f"hold: request {rid} still has {len(account.in_flight)} steps in flight")
        if not max(1, protected) <= keep <= account.computed:
            raise LedgerError(
                f"hold: request {rid} cannot keep {keep} positions; it has KV for {account.computed}, "
                f"{protected} of them cached"
            )
        if not self.holdable(rid, keep):
            raise LedgerError(f"hold: request {rid} no longer owns the window pages before position {keep}")
        whole = -(-keep // self.page_size)
        gone = tuple(account.pages[whole:])
        del account.pages[whole:]
        for page in reversed(gone):
            self.owner[page] = FREE
            self.free.append(page)
        if self.window is not None:
            self.window.trim(rid, keep)
        account.earlier = account.left(keep)
        account.inherited = keep
        account.committed = keep
        account.held = True
        self._record("hold", rid, (keep, *gone))
        return gone

    def holdable(self, rid: int, keep: int) -> bool:
        """Whether a step at position `keep` would find every window page that it reads."""
        return self.window is None or self.window.reaches(rid, keep)

    def resume(self, rid: int, again: int = 0) -> Account:
        """Assign a held account to a request, which recomputes the last `again` of its positions."""
        account = self._account(rid)
        if not account.held:
            raise LedgerError(f"resume: account {rid} is in use")
        start = account.committed - again
        if again < 0 or start < account.shared * self.page_size or not self.holdable(rid, start):
            raise LedgerError(f"resume: account {rid} cannot recompute {again} of its {account.committed} positions")
        account.generation, account.start = next(self._generations), start
        account.committed = start
        account.held = False
        self._record("resume", rid, (again,))
        return account

    def close(self, rid: int) -> None:
        """Release the account: unpin cached pages, free private ones."""
        account = self._account(rid)
        if account.in_flight:
            raise LedgerError(f"close: request {rid} still has {len(account.in_flight)} steps in flight")
        for page in account.pages[: account.shared]:
            self.pins[page] -= 1
        for page in reversed(account.pages[account.shared :]):
            self.owner[page] = FREE
            self.free.append(page)
        if self.window is not None:
            self.window.close(rid)
        del self.accounts[rid]
        self._record("close", rid, ())

    def evict(self, page: int) -> None:
        """Free one cached page that no row uses."""
        self._demand_cached("evict", page)
        if self.pins[page]:
            raise LedgerError(f"evict: page {page} is used by {self.pins[page]} rows")
        del self.pins[page], self.writer[page]
        self.owner[page] = FREE
        self.free.append(page)
        self._record("evict", 0, (page,))

    @property
    def cached(self) -> int:
        """Number of pages that the cache owns."""
        return len(self.pins)

    def check(self) -> None:
        """Raise LedgerError naming the first law that does not hold."""
        free = set(self.free)
        if len(free) != len(self.free):
            raise LedgerError("law 1: a page is in the free list more than once")
        owned: dict[int, int] = {}
        used: dict[int, int] = dict.fromkeys(self.pins, 0)
        for account in self.accounts.values():
            self._check_account(account, owned, used)
        self._check_owners(free, owned)
        if self.window is not None:
            size = self.page_size
            self.window.check({rid: (a.committed, len(a.pages) * size) for rid, a in self.accounts.items()})
        for page, rows in used.items():
            if self.pins[page] != rows:
                raise LedgerError(f"law 4: page {page} has {self.pins[page]} pins but {rows} rows use it")

    def check_row(self, rid: int) -> None:
        """The part of `check` for one request's row; cheap enough to run after every operation of a long journal."""
        account = self.accounts.get(rid)
        if account is None:
            return
        owned: dict[int, int] = {}
        self._check_account(account, owned, dict.fromkeys(account.pages[: account.shared], 0))
        if any(page not in self.pins for page in account.pages[: account.shared]):
            raise LedgerError(f"law 4: request {rid} uses a page that is not cached")
        for page in owned:
            if self.owner[page] != rid:
                raise LedgerError(f"law 1: page {page} is recorded for {self.owner[page]} but held by {rid}")

    def _check_owners(self, free: set[int], owned: dict[int, int]) -> None:
        """Law 1. Goes page by page only if a count is wrong: the counts alone need no loop over the pool."""
        held = [*((page, CACHE) for page in self.pins), *owned.items()]
        whole = (
            len(free) + len(held) == self.num_pages
            and self.owner.count(FREE) == len(free) + 1
            and free.isdisjoint(self.pins)
            and free.isdisjoint(owned)
            and all(self.owner[page] == owner for page, owner in held)
        )
        if whole:
            return
        for page in range(1, self.num_pages + 1):
            claims = (page in free) + (page in self.pins) + (page in owned)
            owner = FREE if page in free else CACHE if page in self.pins else owned.get(page)
            if claims != 1 or owner != self.owner[page]:
                raise LedgerError(
                    f"law 1: page {page} is recorded for {self.owner[page]} but held by {owner} ({claims} claims)"
                )
        raise LedgerError(f"law 1: the free list contains pages outside 1..{self.num_pages}")

    def _check_account(self, account: Account, owned: dict[int, int], used: dict[int, int]) -> None:
        for index, page in enumerate(account.pages[: account.shared]):
            if page not in used:
                raise LedgerError(f"law 4: request {account.rid} uses page {page}, which is not cached")
            used[page] += 1
            whole = account.committed - index * self.page_size
            if whole < self.page_size:
                raise LedgerError(
                    f"law 5: page {page} is cached, but request {account.rid} committed {whole} of its "
                    f"{self.page_size} positions"
                )
        for page in account.pages[account.shared :]:
            if not 1 <= page <= self.num_pages:
                raise LedgerError(f"law 1: request {account.rid} holds page {page}, outside 1..{self.num_pages}")
            if page in owned:
                raise LedgerError(f"law 2: page {page} is in the rows of requests {owned[page]} and {account.rid}")
            owned[page] = account.rid
        account.check(self.page_size)

    def _demand_cached(self, operation: str, page: int) -> None:
        if not 1 <= page <= self.num_pages:
            raise LedgerError(f"{operation}: page {page} does not exist; pages are 1..{self.num_pages}")
        if self.owner[page] != CACHE:
            raise LedgerError(f"{operation}: page {page} is not in the cache")

    def _account(self, rid: int) -> Account:
        account = self.accounts.get(rid)
        if account is None:
            raise LedgerError(f"request {rid} has no account")
        return account

    def _used(self, rid: int) -> Account:
        account = self.accounts.get(rid) or self._account(rid)
        if account.held:
            raise LedgerError(f"account {rid} is held; resume it first")
        return account

    def _record(self, operation: str, rid: int, numbers: tuple[int, ...]) -> None:
        entry = (operation, rid, numbers)
        self._journal.append(entry)
        self._entries += 1
        for subscriber in self._subscribers:
            subscriber(entry)
        if self.strict:
            self.check()
