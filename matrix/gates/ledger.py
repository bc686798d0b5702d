"""Is every page accounted for, and did every slot hold what its owner wrote?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.ledger import AuditError, Move, audit
from specmatrix.matrix.oracles.prefix import misread_pages, span_of
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, Memory, Run

THRESHOLDS: Final = {
    "leaked_pages": Threshold(0, "a page that nobody owns is memory lost until restart"),
    "wrong_stamps": Threshold(0, "a slot holds its own request's position or the answer is a coincidence"),
}


@dataclass
class LedgerGate:
    """Audits the journal against the laws, counts the pages at rest, holds each cached page's reader against its
    writer and each request's `cached_tokens` against its first admission, and reads the stamps of the KV slots.

    The journal begins with the engine, so a law that an earlier cell of the same start broke is red here too.
    """

    name: str = "ledger"
    needs: frozenset[Capability] = frozenset({Capability.JOURNAL, Capability.COUNTERS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))

    def applies(self, cell: Cell) -> bool:
        """Every cell holds KV memory."""
        return True

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a journal or without compared stamps."""
        memory = run.memory
        leaked = memory.pages - memory.free - memory.cached
        checked, wrong = run.evidence.get("stamp.checked", 0), run.evidence.get("stamp.wrong", 0)
        numbers: dict[str, Number] = {"pages": memory.pages, "leaked": leaked, "stamps": checked, "wrong_stamps": wrong}
        if run.journal is None or not run.journal[0]:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="the subject shows no journal")
        numbers["verbs"] = len(run.journal[0])
        fault = _rest(memory, leaked) or _audited(run, memory)
        if not fault:
            entries, _, size = run.journal
            numbers["shared"], fault = misread_pages(entries, size, run.served, span_of(prepared.cell, run.resolved))
        if not fault and wrong > self.thresholds["wrong_stamps"]:
            fault = f"{wrong} of {checked} KV slots held another request's or position's stamp"
        if fault:
            return Outcome(self.name, State.FAIL, numbers, message=fault)
        if not checked:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no KV stamp was compared")
        return Outcome(self.name, State.PASS, numbers)


def _rest(memory: Memory, leaked: int) -> str:
    if memory.accounts:
        return f"{memory.accounts} requests still hold memory after the last one ended"
    if leaked:
        return f"{leaked} of {memory.pages} pages are neither free nor cached at rest"
    return ""


def _audited(run: Run, memory: Memory) -> str:
    assert run.journal is not None
    try:
        book = audit(*run.journal)
    except AuditError as error:
        return str(error)
    kept = (book.pages, book.free, book.cached, len(book.holdings))
    held = (memory.pages, memory.free, memory.cached, memory.accounts)
    if kept != held:
        return f"the journal ends with (pages, free, cached, accounts) = {kept}, the engine holds {held}"
    return _miscounted(book.moves, run)


def _miscounted(moves: Mapping[int, Sequence[Move]], run: Run) -> str:
    """The first request of the run whose `cached_tokens` are not the positions that its first admission began behind.

    An account serves requests in the order in which they were sent, each once more for every retraction.
    """
    stays = {account: [move for move in each if move.verb != "drop"] for account, each in moves.items()}
    answers = {int(answer.meta_info["id"]): answer for answer in run.answers if not answer.refusal}
    for one in run.served:
        own = stays.get(one.account, [])
        found = own[0].keep - own[0].again if own else 0
        del own[: 2 * (one.retractions + 1)]
        answer = answers.get(one.id)
        if answer is not None and not answer.cached_tokens == found < one.prompt:
            return (
                f"{one.name} reports {answer.cached_tokens} of {one.prompt} prompt tokens as cached, its first "
                f"admission began behind {found}"
            )
    return ""
