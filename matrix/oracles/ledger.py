"""Independent audit of the KV pages from the journal alone; shares no code with the engine's ledger.

Checking an entry takes time proportional to its own pages, so journals of any length can be audited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.oracles.page_group import STATE, BrokenLawError, PageGroupAudit, StateAudit, law
from specmatrix.matrix.subjects.protocol import Journal

HEADER: Final = "groups"


class AuditError(Exception):
    """A journal entry breaks a law of KV ownership; the message names it. index: of the entry; account: its own."""

    def __init__(self, message: str, index: int, account: int) -> None:
        super().__init__(message)
        self.index, self.account = index, account


@dataclass(slots=True)
class Holding:
    """The positions of one account."""

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
    """The pages of each KV group, and the state of each account. Cached pages are named by those of the first group."""

    def __init__(self, groups: Sequence[PageGroupAudit]) -> None:
        self.groups = groups
        self.size = groups[0].size
        self.holdings: dict[int, Holding] = {}
        self.moves: dict[int, list[Move]] = {}
        self.operations: dict[str, Callable[[int, int, Sequence[tuple[int, ...]]], None]] = {
            "open": self._open,
            "reserve": self._reserve,
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
    def pages(self) -> int:
        """Pages of all groups."""
        return sum(group.pages for group in self.groups)

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return self.pages - sum(len(group.owner) for group in self.groups)

    @property
    def cached(self) -> int:
        """Pages of the cache."""
        return sum(len(group.users) for group in self.groups)

    def follow(self, operation: str, rid: int, amount: int, pages: Sequence[tuple[int, ...]]) -> None:
        """Apply an entry. BrokenLawError if it breaks a law."""
        law(len(pages) <= len(self.groups), f"pages of {len(pages)} groups change owner; there are {len(self.groups)}")
        self.operations[operation](rid, amount, [*pages, *[()] * (len(self.groups) - len(pages))])

    def _open(self, rid: int, amount: int, pages: Sequence[tuple[int, ...]]) -> None:
        law(rid > 0 and rid not in self.holdings, "the account is already open")
        law(amount == len(pages[0]) * self.size, f"{amount} positions are reused with {len(pages[0])} cached pages")
        for group, shared in zip(self.groups, pages, strict=True):
            group.tied(pages[0], shared)
            group.open(rid, shared)
        self.holdings[rid] = Holding(amount)
        self._reads(rid, amount)
        self._move(rid, "open", amount)

    def _reserve(self, rid: int, width: int, pages: Sequence[tuple[int, ...]]) -> None:
        for group, added in zip(self.groups, pages, strict=True):
            group.cover(rid, added, self.holdings[rid].end + width)

    def _launch(self, rid: int, width: int, pages: Sequence[tuple[int, ...]]) -> None:
        law(width >= 1, f"a step of {width} positions is launched")
        for group in self.groups:
            group.writes(rid, self.holdings[rid].end + width)
        self.holdings[rid].flights.append(width)

    def _settle(self, rid: int, accepted: int, pages: Sequence[tuple[int, ...]]) -> None:
        holding = self.holdings[rid]
        law(bool(holding.flights), "no step is in flight")
        width = holding.flights.popleft()
        law(0 <= accepted <= width, f"{accepted} positions are accepted of a step of width {width}")
        holding.committed += accepted
        for group, freed in zip(self.groups, pages, strict=True):
            group.slide(rid, freed, holding.committed)
        self._reads(rid, holding.committed)

    def _cancel(self, rid: int, width: int, pages: Sequence[tuple[int, ...]]) -> None:
        flights = self.holdings[rid].flights
        law(bool(flights) and flights.pop() == width, "the cancelled step is not the newest in flight")

    def _donate(self, rid: int, count: int, pages: Sequence[tuple[int, ...]]) -> None:
        law(len(pages[0]) == count, f"{count} pages are donated, but {len(pages[0])} are named")
        for group, given in zip(self.groups, pages, strict=True):
            group.donate(rid, given, self.holdings[rid].committed)
            group.tie(pages[0], given)

    def _hold(self, rid: int, keep: int, pages: Sequence[tuple[int, ...]]) -> None:
        holding, cached = self.holdings[rid], self.groups[0].cached_positions(rid)
        law(not holding.flights, "steps are still in flight")
        law(
            cached <= keep <= holding.computed and keep > 0,
            f"{keep} positions are kept; {holding.computed} are computed, {cached} cached",
        )
        for group, freed in zip(self.groups, pages, strict=True):
            group.trim(rid, freed, keep)
        self._move(rid, "hold", keep)
        holding.committed = holding.kept = keep
        holding.held = True
        self._reads(rid, keep)

    def _resume(self, rid: int, again: int, pages: Sequence[tuple[int, ...]]) -> None:
        holding, cached = self.holdings[rid], self.groups[0].cached_positions(rid)
        room = min(group.room(rid, holding.committed) for group in self.groups) - cached
        self._move(rid, "resume", holding.committed, again, max(0, room))
        start = holding.committed - again
        law(holding.held, "the account is not held")
        law(cached <= start <= holding.committed, f"a turn resumes at position {start}, inside its cached pages")
        self._reads(rid, start)
        holding.committed = start
        holding.held = False

    def _close(self, rid: int, _: int, pages: Sequence[tuple[int, ...]]) -> None:
        self._move(rid, "drop" if self.holdings[rid].held else "close")
        law(not self.holdings.pop(rid).flights, "steps are still in flight")
        for group in self.groups:
            group.close(rid)

    def _evict(self, rid: int, count: int, pages: Sequence[tuple[int, ...]]) -> None:
        law(len(pages[0]) == count, f"{count} pages are evicted, but {len(pages[0])} are named")
        for group, gone in zip(self.groups, pages, strict=True):
            group.tied(pages[0], gone)
            for page in gone:
                group.evict(page)

    def _reads(self, rid: int, position: int) -> None:
        for group in self.groups:
            group.reads(rid, position)

    def _move(self, rid: int, operation: str, keep: int = 0, again: int = 0, room: int = 0) -> None:
        self.moves.setdefault(rid, []).append(Move(operation, self.holdings[rid].computed, keep, again, room))


def audit(journal: Journal) -> Audit:
    """Replay a journal from an empty ledger. AuditError at the first entry that breaks a law."""
    size, groups = groups_of(journal)
    replayed = Audit([(StateAudit if sizes[0] == STATE else PageGroupAudit)(size, *sizes) for sizes in groups])
    for index, (operation, rid, amount, pages) in enumerate(journal[1:], 1):
        if operation not in replayed.operations:
            raise AuditError(f"journal entry {index} has the unknown operation {operation!r}", index, rid)
        if operation not in ("open", "evict") and rid not in replayed.holdings:
            raise AuditError(f"journal entry {index} ({operation}): account {rid} is not open", index, rid)
        if operation not in ("open", "resume", "close") and rid in replayed.holdings and replayed.holdings[rid].held:
            text = f"journal entry {index} ({operation}): account {rid} is held and was not resumed"
            raise AuditError(text, index, rid)
        try:
            replayed.follow(operation, rid, amount, pages)
        except BrokenLawError as broken:
            text = f"journal entry {index} ({operation}, account {rid}): {broken}"
            raise AuditError(text, index, rid) from None
    return replayed


def groups_of(journal: Journal) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The page size and each group's (kind, pages), and of a window its tokens and margin, of states their scale.

    AuditError if the journal does not begin with its groups, as older ones do not.
    """
    operation, _, size, groups = journal[0] if journal and len(journal[0]) == 4 else ("", 0, 0, ())
    if operation != HEADER:
        first = journal[0] if journal else "nothing"
        text = f"a journal begins with its KV groups, this one with {first}: it is old, record it again"
        raise AuditError(text, 0, 0)
    return size, groups
