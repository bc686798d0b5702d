"""Independent audit of the KV pages from the journal alone; shares no code with the engine's ledger.

Checking an entry takes time proportional to its own pages, so journals of any length can be audited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.oracles.window import WindowAudit

CACHE: Final = -1


class AuditError(Exception):
    """A journal entry breaks a law of KV ownership; the message names it. index: of the entry; account: its own."""

    def __init__(self, message: str, index: int, account: int) -> None:
        super().__init__(message)
        self.index, self.account = index, account


@dataclass(slots=True)
class Holding:
    """One account's pages in the order of positions; the first `shared` are cached."""

    pages: list[int]
    shared: int
    committed: int
    flights: deque[int] = field(default_factory=deque)
    held: bool = False  # by an idle session
    kept: int = 0  # positions kept by the last hold

    @property
    def end(self) -> int:
        """Position after everything in flight."""
        return self.committed + sum(self.flights)

    @property
    def computed(self) -> int:
        """Positions with KV; a turn that stops while it recomputes the last positions of its session loses none."""
        return max(self.committed, self.kept)


@dataclass(frozen=True, slots=True)
class Move:
    """One change of an account's use: "open", "hold", "resume", "close" (of a request) or "drop" (while held).

    computed: positions with KV just before. keep: positions kept by a hold or reused by an open or a resume. For a
    resume, again: positions recomputed; room: positions that could be (private and inside the window).
    """

    operation: str
    computed: int
    keep: int = 0
    again: int = 0
    room: int = 0


class Audit:
    """Pages 1..`pages` of `size` positions; a page without an owner is free."""

    def __init__(self, pages: int, size: int) -> None:
        self.pages = pages
        self.size = size
        self.owner: dict[int, int] = {}
        self.users: dict[int, int] = {}  # cached page -> requests that read it
        self.holdings: dict[int, Holding] = {}
        self.moves: dict[int, list[Move]] = {}
        self.window: WindowAudit | None = None
        self.operations: dict[str, Callable[[int, tuple[int, ...]], None]] = {
            "window": self._window,
            "open": self._open,
            "reserve": self._reserve,
            "cover": self._cover,
            "slide": self._slide,
            "launch": self._launch,
            "settle": self._settle,
            "cancel": self._cancel,
            "donate": self._donate,
            "hold": self._hold,
            "resume": self._resume,
            "close": self._close,
            "evict": self._evict,
        }

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return self.pages - len(self.owner)

    @property
    def cached(self) -> int:
        """Pages of the cache."""
        return len(self.users)

    def _window(self, rid: int, numbers: tuple[int, ...]) -> None:
        tokens, pages, _margin = numbers
        _law(self.window is None and not self.holdings, "the window is set after an account was opened")
        self.window = WindowAudit(tokens, pages, self.size, _law)

    def _windowed(self) -> WindowAudit:
        _law(self.window is not None, "the engine has no sliding window")
        assert self.window is not None
        return self.window

    def _cover(self, rid: int, added: tuple[int, ...]) -> None:
        self._windowed().cover(rid, added, len(self.holdings[rid].pages))

    def _slide(self, rid: int, numbers: tuple[int, ...]) -> None:
        (count,) = numbers
        self._windowed().slide(rid, count, self.holdings[rid].committed)

    def _open(self, rid: int, shared: tuple[int, ...]) -> None:
        _law(rid > 0 and rid not in self.holdings, "the account is already open")
        for page in shared:
            _law(self.owner.get(page) == CACHE, f"page {page} is shared, but not cached")
            self.users[page] += 1
        self.holdings[rid] = Holding(list(shared), len(shared), len(shared) * self.size)
        self._move(rid, "open", len(shared) * self.size)
        if self.window is not None:
            _law(not shared, "cached pages are shared, but hold no KV of windowed layers")
            self.window.open(rid)

    def _reserve(self, rid: int, numbers: tuple[int, ...]) -> None:
        width, *added = numbers
        holding = self.holdings[rid]
        needed = max(0, -(-(holding.end + width) // self.size) - len(holding.pages))
        _law(len(added) == needed, f"{len(added)} pages are added; expected {needed}")
        for page in added:
            _law(1 <= page <= self.pages, f"page {page} does not exist")
            _law(page not in self.owner, f"page {page} is allocated, but belongs to account {self.owner.get(page)}")
            self.owner[page] = rid
        holding.pages += added

    def _launch(self, rid: int, numbers: tuple[int, ...]) -> None:
        holding, (width,) = self.holdings[rid], numbers
        reserved = len(holding.pages) * self.size
        _law(
            width >= 1 and holding.end + width <= reserved,
            f"a step writes up to position {holding.end + width}, but {reserved} positions are reserved",
        )
        if self.window is not None:
            self.window.writes(rid, holding.end + width)
        holding.flights.append(width)

    def _settle(self, rid: int, numbers: tuple[int, ...]) -> None:
        holding, (accepted,) = self.holdings[rid], numbers
        _law(bool(holding.flights), "no step is in flight")
        width = holding.flights.popleft()
        _law(0 <= accepted <= width, f"{accepted} positions are accepted of a step of width {width}")
        holding.committed += accepted

    def _cancel(self, rid: int, numbers: tuple[int, ...]) -> None:
        holding = self.holdings[rid]
        _law(
            bool(holding.flights) and holding.flights.pop() == numbers[0],
            "the cancelled step is not the newest in flight",
        )

    def _donate(self, rid: int, numbers: tuple[int, ...]) -> None:
        count, *given = numbers
        holding = self.holdings[rid]
        end = holding.shared + count
        _law(
            given == holding.pages[holding.shared : end] and len(given) == count,
            "the donated pages are not the account's next ones",
        )
        _law(
            end * self.size <= holding.committed,
            f"{end} pages are cached, but only {holding.committed} positions are committed",
        )
        for page in given:
            self.owner[page] = CACHE
            self.users[page] = 1
        holding.shared = end

    def _hold(self, rid: int, numbers: tuple[int, ...]) -> None:
        keep, *gone = numbers
        holding = self.holdings[rid]
        _law(not holding.flights, "steps are still in flight")
        _law(
            holding.shared * self.size <= keep <= holding.computed and keep > 0,
            f"{keep} positions are kept; {holding.computed} are computed, {holding.shared * self.size} cached",
        )
        whole = -(-keep // self.size)
        _law(gone == holding.pages[whole:], f"the freed pages are not those after position {keep}")
        for page in gone:
            del self.owner[page]
        del holding.pages[whole:]
        self._move(rid, "hold", keep)
        holding.committed = holding.kept = keep
        holding.held = True
        if self.window is not None:
            self.window.reads(rid, keep)
            self.window.trim(rid, keep)

    def _resume(self, rid: int, numbers: tuple[int, ...]) -> None:
        holding, (again,) = self.holdings[rid], numbers
        room = holding.committed - holding.shared * self.size
        if self.window is not None:
            room = min(room, self.window.room(rid, holding.committed))
        self._move(rid, "resume", holding.committed, again, room)
        start = holding.committed - again
        _law(holding.held, "the account is not held")
        _law(
            holding.shared * self.size <= start <= holding.committed,
            f"a turn resumes at position {start}, inside its cached pages",
        )
        if self.window is not None:
            self.window.reads(rid, start)
        holding.committed = start
        holding.held = False

    def _move(self, rid: int, operation: str, keep: int = 0, again: int = 0, room: int = 0) -> None:
        self.moves.setdefault(rid, []).append(Move(operation, self.holdings[rid].computed, keep, again, room))

    def _close(self, rid: int, numbers: tuple[int, ...]) -> None:
        self._move(rid, "drop" if self.holdings[rid].held else "close")
        holding = self.holdings.pop(rid)
        _law(not holding.flights, "steps are still in flight")
        for page in holding.pages[: holding.shared]:
            self.users[page] -= 1
        for page in holding.pages[holding.shared :]:
            del self.owner[page]
        if self.window is not None:
            self.window.close(rid)

    def _evict(self, rid: int, numbers: tuple[int, ...]) -> None:
        (page,) = numbers
        _law(self.owner.get(page) == CACHE, f"page {page} is evicted, but is not cached")
        _law(self.users[page] == 0, f"page {page} is evicted while {self.users[page]} requests read it")
        del self.users[page], self.owner[page]


def audit(journal: Iterable[tuple[str, int, tuple[int, ...]]], pages: int, size: int) -> Audit:
    """Replay a journal from an empty ledger. AuditError at the first entry that breaks a law."""
    replayed = Audit(pages, size)
    for index, (operation, rid, numbers) in enumerate(journal):
        if operation not in replayed.operations:
            raise AuditError(f"journal entry {index} has the unknown operation {operation!r}", index, rid)
        if operation not in ("window", "open", "evict") and rid not in replayed.holdings:
            raise AuditError(f"journal entry {index} ({operation}): account {rid} is not open", index, rid)
        if operation not in ("open", "resume", "close") and rid in replayed.holdings and replayed.holdings[rid].held:
            text = f"journal entry {index} ({operation}): account {rid} is held and was not resumed"
            raise AuditError(text, index, rid)
        try:
            replayed.operations[operation](rid, tuple(numbers))
        except _BrokenLaw as broken:
            text = f"journal entry {index} ({operation}, account {rid}): {broken}"
            raise AuditError(text, index, rid) from None
    return replayed


class _BrokenLaw(Exception):
    """Carries a broken law's message to `audit`, which adds the entry."""


def _law(holds: bool, message: str) -> None:
    if not holds:
        raise _BrokenLaw(message)
