"""Checks that each streaming-session turn inherits exactly the KV computed for the tokens that the user saw.

The journal gives the positions that an account kept and computed; the answers give the tokens that the user saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, State
from specmatrix.matrix.gates.refusals import refusal_fault
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.ledger import AuditError, Move, audit
from specmatrix.matrix.oracles.prefix import span_of
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.wording import count

THRESHOLDS: Final = {
    "wrong": Threshold(
        0, "one position too few is computed again, one too many conditions the answer on tokens that were never shown"
    ),
    "apart": Threshold(0, "a turn's prompt is its history followed by its own tokens"),
}


@dataclass
class SessionGate:
    """Compares each session's turns with its account's journal: KV inherited, kept, and rolled back by an abort."""

    name: str = "session"
    needs: frozenset[Capability] = frozenset({Capability.SESSIONS, Capability.JOURNAL, Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))

    def applies(self, cell: Cell) -> bool:
        """Cells whose requests are turns or branches of sessions."""
        return cell.session != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a journal, or if no turn continued another."""
        if run.journal is None:
            return Outcome(self.name, State.NOT_MEASURED, message="the subject provides no ledger journal")
        try:
            moves = audit(run.journal).moves
        except AuditError as broken:
            return Outcome(self.name, State.FAIL, message=str(broken))
        apart = list(_apart(run, baseline))
        windowed, span = run.resolved.get("window") is not None, span_of(prepared.cell, run.resolved)
        walks = [Walk(turns, moves.get(int(turns[0][0].meta_info["id"]), []), windowed, span) for turns in lines(run)]
        faults = [fault for walk in walks for fault in walk.faults()]
        numbers: dict[str, Number] = {
            "sessions": len({request.session.id for request in run.requests if request.session is not None}),
            "inherited": sum(walk.inherited for walk in walks),
            "resumed": sum(walk.resumed for walk in walks),
            "restored": sum(walk.restored for walk in walks),
            "rolled_back": sum(walk.rolled_back for walk in walks),
            "wrong": len(faults),
            "apart": len(apart),
            "attempts": len(run.attempts),
        }
        fault = refusal_fault(run) or _lost_without_eviction(walks, run)
        if fault:
            return Outcome(self.name, State.FAIL, numbers, message=fault)
        if apart:
            text = f"the prompt of {apart[0]} is not its history followed by its own tokens"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(apart[0]))
        if faults:
            turn, text = faults[0]
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(turn))
        if not any(request.session is not None and request.session.follows is not None for request in run.requests):
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no session request continued another")
        return Outcome(self.name, State.PASS, numbers)


def lines(run: Run) -> list[list[tuple[Answer, bool]]]:
    """Each streaming session's turns: (answer, whether it was aborted while queued)."""
    answers = {answer.name: answer for answer in run.answers}
    by_id: dict[str, list[tuple[Answer, bool]]] = {}
    for request in run.requests:
        served = request.name in answers and not answers[request.name].refusal
        if request.session is not None and request.session.streaming and served:
            turn = answers[request.name]
            queued = request.abort_after == 0 and not turn.output_ids and not turn.cached_tokens
            by_id.setdefault(request.session.id, []).append((turn, queued))
    return list(by_id.values())


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
        if got != due:
            yield name


def _own(turn: Answer, before: Answer) -> tuple[int, ...] | None:
    """A turn's prompt without its history, None if it does not begin with the whole previous turn."""
    history = before.prompt_ids + before.output_ids
    return turn.prompt_ids[len(history) :] if turn.prompt_ids[: len(history)] == history else None


def _lost_without_eviction(walks: Sequence[Walk], run: Run) -> str:
    """A sentence if more turns lost their session's KV than sessions were evicted, else ""."""
    lost, dropped = sum(walk.lost for walk in walks), run.evidence.get("session.dropped", 0)
    return f"{lost} turns lost their session's KV, but only {dropped} sessions were evicted" if lost > dropped else ""


class Walk:
    """One session's turns with the journal moves of its account.

    windowed: a sliding window may have released what a rollback needs. span: number of inherited positions at the end
    that a turn computes again, because their draft KV depends on the tokens after them.
    """

    def __init__(self, turns: Sequence[tuple[Answer, bool]], moves: Sequence[Move], windowed: bool, span: int) -> None:
        self.turns = turns
        self.moves = list(moves)
        self.windowed = windowed
        self.span = span
        self.inherited = self.resumed = self.restored = self.rolled_back = self.lost = 0

    def faults(self) -> Iterator[tuple[str, str]]:
        """(turn, sentence) for each turn that inherited or left a wrong number of positions."""
        kept = 0
        for turn, queued in self.turns:
            if queued:
                continue
            stays = list(self._stays(turn))
            if not stays and turn.output_ids:
                yield turn.name, f"{turn.name} produced tokens without a ledger account"
            for index, (begin, end) in enumerate(stays):
                last = index == len(stays) - 1
                if begin.operation == "resume":
                    self.restored += index > 0
                    yield from ((turn.name, text) for text in self._found(turn, begin))
                else:
                    self.lost += bool(kept)
                back = not last or turn.finish == "abort"
                expected = self._expected(turn, begin, end, last)
                left = end.keep
                if left != expected and not (self.windowed and back and not left):
                    when = "" if last else " when it was retracted"
                    apart = abs(left - expected)
                    how = f"{count(apart, 'token')} too {'short' if left < expected else 'long'}"
                    text = f"{turn.name} left {left} KV positions{when}; expected {expected}: its session is {how}"
                    yield turn.name, text
                kept = left

    def _found(self, turn: Answer, begin: Move) -> Iterator[str]:
        """Yield a sentence if a turn's start from held KV, or its restart after a retraction, is wrong. The audit's
        laws ensure that it inherits what the previous turn left: a resume follows the hold of its account."""
        self.resumed += 1
        self.inherited += begin.keep
        again = min(self.span, begin.room)
        if begin.again != again:
            yield f"{turn.name} recomputes {begin.again} inherited positions; the draft KV of {again} is stale"

    def _stays(self, turn: Answer) -> Iterator[tuple[Move, Move]]:
        """(first, last) move of the turn and of each restart after a retraction; evictions in between are skipped."""
        for _ in range(turn.retractions + 1):
            while self.moves and self.moves[0].operation == "drop":
                self.moves.pop(0)
            if len(self.moves) > 1:
                yield self.moves.pop(0), self.moves.pop(0)

    def _expected(self, turn: Answer, begin: Move, end: Move, last: bool) -> int:
        """Expected number of positions left: those of visible tokens that have KV, or those that an aborted or
        retracted turn had inherited."""
        if last and turn.finish != "abort":
            return min(len(turn.prompt_ids) + len(turn.output_ids), end.computed)
        self.rolled_back += last and begin.operation == "resume"
        return begin.keep if begin.operation == "resume" else 0
