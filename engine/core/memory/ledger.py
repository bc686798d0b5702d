"""KV ownership as a pure ledger: few operations, a journal of them, and laws that hold after every operation.

Memory is a list of groups (`groups.py`), and every operation holds in all of them. Cached pages are named by those of
the first group, whose layers read every earlier position. Counts are token positions.

The journal is a stream: subscribers receive every entry, and the ledger itself keeps only the latest ones. Its first
entry names the groups.

Laws (`check`), in every group:
1. each page has exactly one owner: free, the cache, or one account;
2. a private page is in exactly one row;
3. protected <= committed <= committed + in flight <= reserved;
4. pins equal the number of rows that use a cached page, and only unpinned pages are evicted;
5. a cached page is complete: every row that uses it has committed all of its positions;
6. an account owns the pages of every position that a later query reads;
7. a held account has nothing in flight and no page past its committed positions.

Journal replay: audits a run's ledger operations, on any machine and at any time later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final, TypeAlias

from specmatrix.engine.core.memory.groups import CACHE, KINDS, Account, GroupPages, PageCounts, PageGroup, spans
from specmatrix.errors import EngineError, LedgerError

KEPT: Final = 4096  # most recent journal entries kept
HEADER: Final = "groups"  # the first entry: the page size, and the sizes of each group

Pages: TypeAlias = tuple[tuple[int, ...], ...]  # pages by group; () if there are none in any group
# Operation, account (0 for none), count (positions; pages for donate and evict), and the pages that change owner.
Entry: TypeAlias = tuple[str, int, int, Pages]


class OutOfPages(Exception):
    """A reservation needs more pages than are free. Nothing was changed."""


class Ledger:
    """Page ownership in one or more groups. `strict` checks every law after every operation.

    Raises LedgerError, a bug in the caller, on an operation that its account or page does not allow; nothing has
    changed then.
    """

    def __init__(self, *groups: PageGroup, strict: bool = False) -> None:
        self.groups = groups
        self.page_size = groups[0].page_size
        self.unit = max(group.scale for group in groups if group.cached)  # pages that enter and leave the cache at once
        self.rewinds = all(group.rewinds for group in groups)
        self.strict = strict
        self._generations = count(1)
        self.accounts: dict[int, Account] = {}
        self._journal: deque[Entry] = deque(maxlen=KEPT)
        self._entries = 0
        self._subscribers: list[Callable[[Entry], None]] = []
        self._record(HEADER, 0, self.page_size, [group.sizes for group in groups])

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

    @property
    def counts(self) -> PageCounts:
        """The page counts of all groups."""
        return PageCounts(*map(sum, zip(*[group.counts for group in self.groups], strict=True)))

    def open(self, rid: int, shared: Sequence[int] = ()) -> Account:
        """Open an account that starts with cached pages, all of them complete."""
        if rid <= 0 or rid in self.accounts:
            raise LedgerError(f"open: request id {rid} is not a new positive id")
        for page in shared:
            self._demand_cached("open", page)
        first, begin = self.groups[0], len(shared) * self.page_size
        earlier = spans((index * self.page_size, first.writer[page]) for index, page in enumerate(shared))
        pages = [tuple(group.beside(shared)) for group in self.groups]
        own = tuple([GroupPages([*held], 0, len(held)) for held in pages])
        for group, entry in zip(self.groups, own, strict=True):
            if not group.reaches(entry, begin):
                raise LedgerError(f"open: cached pages {list(shared)} lack KV that {group.name} layers read")
        for group, entry in zip(self.groups, own, strict=True):
            for page in entry.pages:
                group.pins[page] += 1
        account = self.accounts[rid] = Account(rid, own, begin, next(self._generations), begin, earlier)
        self._record("open", rid, begin, pages)
        return account

    def shortfall(self, rid: int, width: int) -> list[int]:
        """Free pages missing for a step of `width` positions after everything in flight, by group (0: it fits)."""
        account = self._account(rid)
        end = _end("reserve", account, width)
        return [max(0, group.missing(own, end) - len(group.free)) for group, own in self._parts(account)]

    def reserve(self, rid: int, width: int) -> Pages:
        """Reserve every position up to committed + in flight + width. Returns the pages added.

        Raises OutOfPages without changing anything.
        """
        account = self._used(rid)
        end = _end("reserve", account, width)
        for group, own in self._parts(account):
            more = group.missing(own, end)
            if more > len(group.free):
                raise OutOfPages(f"account {rid} needs {more} {group.name} pages, {len(group.free)} are free")
        return self._record("reserve", rid, width, [group.cover(rid, own, end) for group, own in self._parts(account)])

    def launch(self, rid: int, width: int) -> int:
        """Record the launch of a step that writes up to `width` positions. Returns the bound on the KV length."""
        account = self._used(rid)
        bound = _end("launch", account, width)
        for group, own in self._parts(account):
            if group.missing(own, bound):
                raise LedgerError(
                    f"launch: request {rid} would write {width} positions after {account.committed} + "
                    f"{account.flying} of {own.end * self.page_size} reserved in {group.name} pages"
                )
        account.in_flight.append(width)
        self._record("launch", rid, width)
        return bound

    def settle(self, rid: int, accepted: int) -> Pages:
        """Record that the oldest launched step of `rid` resolved with `accepted` positions kept. Returns the pages
        freed, as no later query reads them: earlier steps in flight may still read older positions, so only committed
        positions count."""
        account = self._account(rid)
        if not account.in_flight:
            raise LedgerError(f"settle: request {rid} has nothing in flight")
        width = account.in_flight[0]
        if not 0 <= accepted <= width:
            raise LedgerError(f"settle: request {rid} accepted {accepted} of a step of width {width}")
        account.in_flight.popleft()
        account.committed += accepted
        freed = [group.slide(own, account.committed) for group, own in self._parts(account)]
        return self._record("settle", rid, accepted, freed)

    def cancel(self, rid: int) -> None:
        """Record that the newest launched step of `rid` never resolves: none of its positions are kept."""
        account = self._account(rid)
        if not account.in_flight:
            raise LedgerError(f"cancel: request {rid} has nothing in flight")
        for own in account.groups:
            own.length = -1  # the step may have advanced a state
        self._record("cancel", rid, account.in_flight.pop())

    def donate(self, rid: int, count: int) -> tuple[int, ...]:
        """Transfer the first `count` private pages of the first group to the cache; the account keeps using them."""
        account = self._used(rid)
        own = account.groups[0]
        end = own.shared + count
        if account.inherited:
            raise LedgerError(f"donate: account {rid} was held, so its pages may have several writers")
        if count < 0 or end * self.page_size > account.committed:
            raise LedgerError(
                f"donate: request {rid} has {account.committed} positions committed, less than {end} whole pages"
            )
        if count % self.unit:
            raise LedgerError(f"donate: request {rid} gives {count} pages; allowed: a multiple of {self.unit}")
        given = [
            group.donate(own, group.cached * count // group.scale, account.generation)
            for group, own in self._parts(account)
        ]
        for group, pages in zip(self.groups, given, strict=True):
            group.tie(given[0], pages)
        self._record("donate", rid, count, given)
        return given[0]

    def hold(self, rid: int, keep: int) -> Pages:
        """Keep the account without a request: its first `keep` positions and their pages. Returns the pages freed."""
        account = self._used(rid)
        protected = account.groups[0].shared * self.page_size
        if account.in_flight:
            raise LedgerError(f"hold: request {rid} still has {len(account.in_flight)} steps in flight")
        if not max(1, protected) <= keep <= account.computed:
            raise LedgerError(
                f"hold: request {rid} cannot keep {keep} positions; it has KV for {account.computed}, "
                f"{protected} of them cached"
            )
        if self.reach(rid, keep) != keep:
            raise LedgerError(f"hold: request {rid} no longer owns pages that a query at position {keep} reads")
        gone = [group.trim(own, keep) for group, own in self._parts(account)]
        account.earlier = account.left(keep)
        account.inherited = account.committed = keep
        account.held = True
        return self._record("hold", rid, keep, gone)

    def reach(self, rid: int, position: int) -> int:
        """The last position up to `position`, which is committed, at which a step finds all that it reads; else -1."""
        for group, own in self._parts(self._account(rid)):
            position = group.reach(own, position)
        return position

    def chunk_end(self, start: int, end: int) -> int:
        """Where a prefill chunk from `start` ends at the latest, if it could go on to `end`."""
        return min([group.chunk_end(start, end) for group in self.groups])

    def resume(self, rid: int, again: int = 0) -> Account:
        """Assign a held account to a request, which recomputes the last `again` of its positions."""
        account = self._account(rid)
        if not account.held:
            raise LedgerError(f"resume: account {rid} is in use")
        start = account.committed - again
        if again < 0 or start < account.groups[0].shared * self.page_size or self.reach(rid, start) != start:
            raise LedgerError(f"resume: account {rid} cannot recompute {again} of its {account.committed} positions")
        account.generation, account.start = next(self._generations), start
        account.committed = start
        account.held = False
        self._record("resume", rid, again)
        return account

    def close(self, rid: int) -> None:
        """Release the account: unpin cached pages, free private ones."""
        account = self._account(rid)
        if account.in_flight:
            raise LedgerError(f"close: request {rid} still has {len(account.in_flight)} steps in flight")
        for group, own in self._parts(account):
            group.close(own)
        del self.accounts[rid]
        self._record("close", rid)

    def evict(self, *pages: int) -> None:
        """Free cached pages that no row uses: `unit` consecutive ones, with what other groups cached beside them."""
        for page in pages:
            self._demand_cached("evict", page)
            if users := self.groups[0].pins[page]:
                raise LedgerError(f"evict: page {page} is used by {users} rows")
        gone = [tuple(group.beside(pages)) for group in self.groups]
        for group, freed in zip(self.groups, gone, strict=True):
            for page in freed:
                group.evict(page)
        self._record("evict", 0, len(pages), gone)

    def check(self) -> None:
        """Raise LedgerError naming the first law that does not hold."""
        for number, group in enumerate(self.groups):
            group.check([(account, account.groups[number]) for account in self.accounts.values()])

    def check_row(self, rid: int) -> None:
        """The part of `check` for one account; cheap enough to run after every operation of a long journal."""
        if rid in self.accounts:
            for group, own in self._parts(self.accounts[rid]):
                group.check_entry(self.accounts[rid], own)

    def _parts(self, account: Account) -> Iterable[tuple[PageGroup, GroupPages]]:
        """Each group with the account's entry in it."""
        return zip(self.groups, account.groups, strict=True)

    def _demand_cached(self, operation: str, page: int) -> None:
        group = self.groups[0]
        if not 1 <= page <= group.num_pages:
            raise LedgerError(f"{operation}: page {page} does not exist; pages are 1..{group.num_pages}")
        if group.owner[page] != CACHE:
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

    def _record(self, operation: str, rid: int, amount: int = 0, pages: Sequence[tuple[int, ...]] = ()) -> Pages:
        """Add an entry. Returns its pages."""
        entry = (operation, rid, amount, tuple(pages) if any(pages) else ())
        self._journal.append(entry)
        self._entries += 1
        for subscriber in self._subscribers:
            subscriber(entry)
        if self.strict:
            self.check()
        return entry[3]


def _end(operation: str, account: Account, width: int) -> int:
    """Position after a further step of `width` positions."""
    if width < 1:
        raise LedgerError(f"{operation}: request {account.rid} asks for {width} positions")
    return account.end + width


CHECK_EVERY: Final = 64


def replay(journal: Iterable[Entry]) -> Ledger:
    """Re-run a journal on a fresh ledger. Checks the touched row's laws after every operation, and all laws every
    CHECK_EVERY operations and at the end.

    Raises LedgerError if a law is broken, if an operation does not give what was recorded, or if the journal is an old
    one, which does not begin with its groups.
    """
    entries = iter(journal)
    first = next(entries, None)
    if first is None or first[0] != HEADER:
        raise LedgerError(f"a journal begins with its KV groups, this one with {first}: it is old, record it again")
    _, _, page_size, groups = first
    ledger = Ledger(*[KINDS[kind](pages, page_size, *sizes) for kind, pages, *sizes in groups])
    latest: deque[Entry] = deque(maxlen=1)
    ledger.subscribe(latest.append)
    for index, entry in enumerate(entries, 1):
        _repeat(ledger, index, entry)
        if latest[0] != entry:
            raise LedgerError(f"journal entry {index}: the run recorded {entry}, but its replay gives {latest[0]}")
        ledger.check_row(entry[1])
        if index % CHECK_EVERY == 0:
            ledger.check()
    ledger.check()
    return ledger


def _repeat(ledger: Ledger, index: int, entry: Entry) -> None:
    operation, rid, amount, pages = entry
    if operation == "open":
        ledger.open(rid, pages[0] if pages else ())
    elif operation == "evict":
        ledger.evict(*pages[0])
    elif operation in ("cancel", "close"):
        getattr(ledger, operation)(rid)
    elif operation in ("reserve", "launch", "settle", "donate", "hold", "resume"):
        getattr(ledger, operation)(rid, amount)
    else:
        raise LedgerError(f"journal entry {index}: unknown operation {operation!r}")
