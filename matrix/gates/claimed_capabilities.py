"""Checks that a foreign subject delivers what its profile claims, and that its drafter ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, PackageGate
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec

# Tokens; prompt lookups search for as many or fewer.
WINDOW: Final = 5
# Tokens at the end of a text, where an engine may not draft because its length limit is near.
SPARE: Final = 2


@dataclass
class ClaimedCapabilitiesGate(PackageGate):
    """Every claimed capability is delivered, and in a cell with a drafter they prove that rounds with drafts ran."""

    name: str = "claimed_capabilities"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without requests."""
        if not run.requests:
            return self.not_measured("the cell has no requests")
        answers = {answer.name: answer for answer in run.answers}
        faults = [*_run_faults(prepared.cell, run)]
        for request in run.requests:
            faults += _faults(prepared.cell, run.capabilities, request, answers[request.name])
        numbers = {"answers": len(answers), "claims": len(run.capabilities), "broken": len(faults)}
        return self.verdict(numbers, faults[0] if faults else "")


def _run_faults(cell: Cell, run: Run) -> Iterator[str]:
    """A sentence for each claim about the whole run that does not hold."""
    claims = run.capabilities
    unread = [flag for flag in run.flags if flag not in run.readback]
    if Capability.READBACK in claims and unread:
        yield f"the subject claims readback, but does not report {unread[0]}"
    lacks = (
        (Capability.MEMORY, run.memory is None, "memory, but reports none"),
        (Capability.JOURNAL, not run.journal, "a journal, but has none"),
        (Capability.ORDER, _drafts(cell) and run.journal is None, "the order of rounds, but has no journal"),
        (Capability.WORK, run.work is None, "a log of its work, but has none"),
        (Capability.TRACE, cell.adapts and run.trace is None, "a trace, but has none"),
        (Capability.COUNTERS, not any(run.evidence.values()), "counters, but all are zero"),
    )
    yield from (f"the subject claims {what}" for claim, lacking, what in lacks if claim in claims and lacking)
    drafted, accepted = run.evidence.get("spec.drafted", 0), run.evidence.get("spec.accepted", 0)
    if Capability.TOTALS in claims and _drafts(cell) and any(len(a.output_ids or a.text) > 1 for a in run.answers):
        if not drafted and (not cell.shares_rounds or _repeats(run)):
            yield "the subject claims totals, but counts no draft (spec.drafted), so nothing shows that it speculates"
        elif accepted > drafted:
            yield f"the subject counts {accepted} accepted drafts (spec.accepted) of {drafted} (spec.drafted)"


def _faults(cell: Cell, claims: frozenset[Capability], request: RequestSpec, answer: Answer) -> Iterator[str]:
    """A sentence for each claim that one answer breaks."""
    if answer.refusal:
        yield f"{request.name} was refused: {answer.refusal}"
        return
    tokens = len(answer.output_ids)
    if Capability.TOKEN_IDS in claims and not tokens and answer.finish in ("stop", "length"):
        yield f"the subject claims token_ids, but {request.name} has none"
    if Capability.ROUNDS in claims and _drafts(cell) and answer.finish in ("stop", "length") and tokens > 1:
        if not answer.accept_lengths:
            yield f"the subject claims rounds, but {request.name} has none for {tokens} tokens"
        elif 1 + answer.moves + sum(answer.accept_lengths) < tokens:
            rounds = sum(answer.accept_lengths)
            yield f"the rounds of {request.name} emitted {rounds} tokens and its prefill 1, but it has {tokens}"


def _repeats(run: Run) -> bool:
    """Whether an n-gram drafter without accepted drafts, which hence ran at every token, must have drafted: whether
    some WINDOW tokens of a greedy answer without logit rules occur earlier in its text."""
    for request, answer in zip(run.requests, run.answers, strict=True):
        if request.temperature or request.ruled:
            continue
        text, seen = (*answer.prompt_ids, *answer.output_ids), set[tuple[int, ...]]()
        for end in range(WINDOW, len(text) - SPARE):
            window = text[end - WINDOW : end]
            if end > len(answer.prompt_ids) and window in seen:
                return True
            seen.add(window)
    return False


def _drafts(cell: Cell) -> bool:
    return cell.algorithm != "none"
