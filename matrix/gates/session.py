"""Checks the prompts of session turns, and what a session must refuse. The KV that a turn inherits and leaves is
predicted by `schedule`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.refusals import refusal_fault
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell


@dataclass
class SessionGate(PackageGate):
    """Compares each turn's prompt with its history and its own tokens, and refusals with those that are due; only an
    engine with a journal is sent what it must refuse."""

    name: str = "session"
    needs: frozenset[Capability] = frozenset({Capability.SESSIONS, Capability.TOKEN_IDS})

    def applies(self, cell: Cell) -> bool:
        """Cells whose requests are turns or branches of sessions."""
        return cell.session != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no turn continued another."""
        apart = list(_apart(run, baseline))
        numbers: dict[str, Number] = {
            "sessions": len({request.session.id for request in run.requests if request.session is not None}),
            "apart": len(apart),
            "attempts": len(run.attempts),
        }
        if Capability.JOURNAL in run.capabilities and (fault := refusal_fault(run)):
            return Outcome(self.name, State.FAIL, numbers, message=fault)
        if apart:
            text = f"the prompt of {apart[0]} is not its history followed by its own tokens"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(apart[0]))
        if not any(request.session is not None and request.session.follows is not None for request in run.requests):
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no session request continued another")
        return Outcome(self.name, State.PASS, numbers)


def _apart(run: Run, baseline: Run) -> Iterator[str]:
    """Yield the turns whose prompt differs from the baseline's. After an answer that deviates from the baseline's (fast
    kernels may at a tie), a turn must instead contain its own session's history, followed by the same new tokens."""
    mine, theirs = ({answer.name: answer for answer in each.answers} for each in (run, baseline))
    parted: set[str] = set()
    for request in run.requests:
        name, before = request.name, (request.session and request.session.follows) or ""
        if name not in mine or name not in theirs:
            continue
        if before in parted or mine[name].output_ids != theirs[name].output_ids:
            parted.add(name)
        got: tuple[int, ...] | None = mine[name].prompt_ids
        due = theirs[name].prompt_ids
        if before in parted and (own := _own(theirs[name], theirs[before])) is not None:
            got, due = _own(mine[name], mine[before]), own
        elif before in parted and Capability.JOURNAL not in run.capabilities:
            got = due  # a branch of an answer that the baseline has not
        counted = mine[name].meta_info.get("prompt_tokens", len(mine[name].prompt_ids))
        if got != due or counted != len(mine[name].prompt_ids):
            yield name


def _own(turn: Answer, before: Answer) -> tuple[int, ...] | None:
    """A turn's prompt without its history, None if it does not begin with the whole previous turn."""
    history = before.prompt_ids + before.output_ids
    return turn.prompt_ids[len(history) :] if turn.prompt_ids[: len(history)] == history else None
