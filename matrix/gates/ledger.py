"""Checks that every KV page is accounted for and that every KV slot holds what its owner wrote."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.core.memory.ledger import replay
from specmatrix.errors import LedgerError
from specmatrix.matrix.conformance.random_trees import first_wrong_room
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate
from specmatrix.matrix.oracles.ledger import AuditError, Move, audit
from specmatrix.matrix.subjects.protocol import Capability, Memory, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.schema import REFERENCE


@dataclass
class LedgerGate(PackageGate):
    """Audits the journal against the ledger's laws, counts pages once the engine is idle, compares `cached_tokens` with
    the first admission, checks the stamps of the KV slots, and that nothing writes to a cached page. Which pages are
    reused follows from their texts, as `schedule` predicts.

    The journal starts with the engine, so a violation by an earlier cell of the same start also fails here.
    """

    name: str = "ledger"
    needs: frozenset[Capability] = frozenset({Capability.JOURNAL, Capability.MEMORY, Capability.COUNTERS})

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a journal or without checked stamps."""
        memory = run.memory
        if memory is None or run.journal is None or not run.journal:
            return self.not_measured("the subject provides no ledger journal")
        leaked = memory.pages - memory.free - memory.cached
        checked, wrong = run.evidence.get("stamp.checked", 0), run.evidence.get("stamp.wrong", 0)
        numbers: dict[str, Number] = {"pages": memory.pages, "leaked": leaked, "stamps": checked, "wrong_stamps": wrong}
        numbers["verbs"] = len(run.journal)
        fault, blame = _audited(run, memory, leaked)
        if not fault and prepared.subject == REFERENCE:
            fault = _replayed(run, memory, prepared.seed)
        if not fault and wrong > self.thresholds["wrong_stamps"]:
            first = run.work.stale if run.work is not None else ()
            fault = f"{wrong} of {checked} checked KV slots held the stamp of another request or position"
            fault += _of(run, first, f", first in a {'prefill step' if 0 in first else 'round'} of ")
        numbers |= {name: run.readback.get(f"pages_{name}", 0) for name in ("watched", "overwritten")}
        if not fault and numbers["overwritten"]:
            fault = f"{numbers['overwritten']} of {numbers['watched']} cached pages were written to, which nobody may"
            owners = run.readback.get("overwritten_of", ())
            fault += _of(run, [one.id for one in run.served if one.account in owners][:1], ", first one of ")
        return self.verdict(numbers, fault, "" if checked else "no KV slot stamp was checked", blame)


def _of(run: Run, requests: Collection[int], words: str) -> str:
    """Words and the names of these requests; "" if none of them was served."""
    names = [one.name for one in run.served if one.id in requests]
    return words + ", ".join(names) if names else ""


def _audited(run: Run, memory: Memory, leaked: int) -> tuple[str, Blame | None]:
    """(fault in the journal or in what is left at the end, else "", request at fault)."""
    assert run.journal is not None
    try:
        replayed = audit(run.journal)
    except AuditError as error:
        names = [one.name for one in run.served if one.account == error.account]
        return str(error), Blame(names[0]) if names else None
    if memory.accounts:
        left = [one.id for one in run.served if one.account in replayed.holdings]
        text = f"{memory.accounts} accounts still hold KV pages after the last request ended"
        return text + _of(run, left, ", of "), None
    if leaked:
        # Who took or gave each one last.
        taken = [(rid, pages[0]) for operation, rid, _, pages in run.journal[1:] if pages and operation != "evict"]
        last = {page: rid for rid, own in taken for page in own}
        owners = {last.get(page) for page in run.readback.get("pages_lost", ())}
        text = f"{leaked} of {memory.pages} KV pages leaked: neither free nor cached after the last request ended"
        return text + _of(run, [one.id for one in run.served if one.account in owners], ", of "), None
    expected = (replayed.pages, replayed.free, replayed.cached, len(replayed.holdings))
    held = (memory.pages, memory.free, memory.cached, memory.accounts)
    if expected != held:
        text = f"replaying the journal gives (pages, free, cached, accounts) = {expected}, the engine reports {held}"
        return text, None
    return _miscounted(replayed.moves, run)


def _replayed(run: Run, memory: Memory, seed: int) -> str:
    """A fault found by the engine's own replay of the journal (for audits on other machines), or "".

    It allocates pages in the reference engine's order. With sliding windows, random requests are admitted too.
    """
    assert run.journal is not None
    try:
        ledger = replay(run.journal)
    except LedgerError as error:
        return f"the engine's own replay of the journal fails: {error}"
    found = (*ledger.counts, len(ledger.accounts))
    held = (memory.pages, memory.free, memory.cached, memory.accounts)
    if found != held:
        return f"the engine's own replay gives (pages, free, cached, accounts) = {found}, not {held}"
    return first_wrong_room(seed) if any(isinstance(each, SlidingWindow) for each in ledger.groups) else ""


def _miscounted(moves: Mapping[int, Sequence[Move]], run: Run) -> tuple[str, Blame | None]:
    """A sentence on the first request whose `cached_tokens` differ from the positions reused at its first admission.

    An account serves its requests in submission order, each once more per retraction.
    """
    stays = {account: [move for move in each if move.operation != "drop"] for account, each in moves.items()}
    answers = {int(answer.meta_info["id"]): answer for answer in run.answers if not answer.refusal}
    for one in run.served:
        own = stays.get(one.account, [])
        found = own[0].keep - own[0].again if own else 0
        del own[: 2 * (one.retractions + 1)]
        answer = answers.get(one.id)
        if answer is not None and not answer.cached_tokens == found < one.prompt:
            text = (
                f"{one.name} reports {answer.cached_tokens} of {one.prompt} prompt tokens as cached, but its first "
                f"admission reused {found}"
            )
            return text, Blame(one.name)
    return "", None
