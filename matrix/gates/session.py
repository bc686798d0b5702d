"""Did each turn of a streaming session inherit exactly what was computed of the tokens that the user saw?

The journal says what an account kept and how much of it was computed; the answers say what the user saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.refusals import refusal_fault
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.ledger import AuditError, Move, audit
from specmatrix.matrix.oracles.prefix import span_of
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run

THRESHOLDS: Final = {
    "wrong": Threshold(0, "one position too few costs a prefill, one too many answers from tokens that nobody said"),
    "apart": Threshold(0, "a turn's prompt is its history and its own tokens"),
}


@dataclass
class SessionGate:
    """Walks each session's turns beside its account's moves: what a turn found, what it kept, what an abort undid."""

    name: str = "session"
    needs: frozenset[Capability] = frozenset({Capability.SESSIONS, Capability.JOURNAL, Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))

    def applies(self, cell: Cell) -> bool:
        """Cells whose requests are turns or branches of sessions."""
        return cell.session != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a journal, or where no turn continued another."""
        if run.journal is None:
            return Outcome(self.name, State.NOT_MEASURED, message="the subject shows no journal")
        try:
            moves = audit(*run.journal).moves
        except AuditError as broken:
            return Outcome(self.name, State.FAIL, message=str(broken))
        resent = {answer.name: answer.prompt_ids for answer in baseline.answers}
        apart = [a.name for a in run.answers if a.name in resent and a.prompt_ids != resent[a.name]]
        windowed, span = run.resolved.get("window") is not None, span_of(prepared.cell, run.resolved)
        walks = [Walk(turns, moves.get(int(turns[0][0].meta_info["id"]), []), windowed, span) for turns in lines(run)]
        faults = [fault for walk in walks for fault in walk.faults()]
        numbers: dict[str, Number] = {
            "sessions": len({ask.session.id for ask in run.asks if ask.session is not None}),
            "inherited": sum(walk.inherited for walk in walks),
            "resumed": sum(walk.resumed for walk in walks),
            "restored": sum(walk.restored for walk in walks),
            "rolled_back": sum(walk.rolled_back for walk in walks),
            "wrong": len(faults),
            "apart": len(apart),
            "attempts": len(run.attempts),
        }
        uninvited = refusal_fault(run) or _given_up(walks, run)
        if uninvited:
            return Outcome(self.name, State.FAIL, numbers, message=uninvited)
        if apart:
            text = f"the prompt of {apart[0]} is not the history sent again and its own tokens"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if faults:
            return Outcome(self.name, State.FAIL, numbers, message=faults[0])
        if not any(ask.session is not None and ask.session.follows is not None for ask in run.asks):
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no request continued another")
        return Outcome(self.name, State.PASS, numbers)


def lines(run: Run) -> list[list[tuple[Answer, bool]]]:
    """The answers of each streaming session, turn by turn, and whether one was aborted in the queue."""
    answers = {answer.name: answer for answer in run.answers}
    by_id: dict[str, list[tuple[Answer, bool]]] = {}
    for ask in run.asks:
        served = ask.name in answers and not answers[ask.name].refusal
        if ask.session is not None and ask.session.streaming and served:
            turn = answers[ask.name]
            queued = ask.abort_after == 0 and not turn.output_ids and not turn.cached_tokens
            by_id.setdefault(ask.session.id, []).append((turn, queued))
    return list(by_id.values())


def _given_up(walks: Sequence[Walk], run: Run) -> str:
    """Only a request that needs the pages takes a session's KV."""
    lost, dropped = sum(walk.lost for walk in walks), run.evidence.get("session.dropped", 0)
    return f"{lost} turns began anew, and {dropped} sessions were given up for room" if lost > dropped else ""


class Walk:
    """One session's turns beside the moves of its account.

    windowed: who goes back may have slid past what the turn began with. span: positions at the end of what a turn
    inherits that it computes again, as the tokens behind them are new.
    """

    def __init__(self, turns: Sequence[tuple[Answer, bool]], moves: Sequence[Move], windowed: bool, span: int) -> None:
        self.turns = turns
        self.moves = list(moves)
        self.windowed = windowed
        self.span = span
        self.inherited = self.resumed = self.restored = self.rolled_back = self.lost = 0

    def faults(self) -> Iterator[str]:
        """A sentence for each turn that found or left something else than it must."""
        kept = 0
        for turn, queued in self.turns:
            if queued:
                continue
            stays = list(self._stays(turn))
            if not stays and turn.output_ids:
                yield f"{turn.name} answered without an account"
            for index, (begin, end) in enumerate(stays):
                last = index == len(stays) - 1
                if begin.verb == "resume":
                    self.restored += index > 0
                    yield from self._found(turn, begin, kept)
                else:
                    self.lost += bool(kept)
                back = not last or turn.finish == "abort"
                due = self._due(turn, begin, end, last)
                left = end.keep if end.verb == "hold" else 0
                if left != due and not (self.windowed and back and not left):
                    yield f"{turn.name} left {left} positions{'' if last else ' when it was retracted'}, {due} were due"
                kept = left

    def _found(self, turn: Answer, begin: Move, kept: int) -> Iterator[str]:
        """What is wrong with the beginning of a turn, or of its rest behind a retraction, on held KV."""
        self.resumed += 1
        self.inherited += begin.keep
        if begin.keep != kept:
            yield f"{turn.name} resumed {begin.keep} positions, what came before left {kept}"
        again = min(self.span, begin.room)
        if begin.again != again:
            yield f"{turn.name} computes {begin.again} inherited positions again, the draft KV of {again} is stale"

    def _stays(self, turn: Answer) -> Iterator[tuple[Move, Move]]:
        """A beginning and an end, once more for each retraction; what is given up in between is nobody's turn."""
        for _ in range(turn.retractions + 1):
            while self.moves and self.moves[0].verb == "drop":
                self.moves.pop(0)
            if len(self.moves) > 1:
                yield self.moves.pop(0), self.moves.pop(0)

    def _due(self, turn: Answer, begin: Move, end: Move, last: bool) -> int:
        """Positions that must be left: the shown ones that have KV, or what an aborted or retracted turn had found."""
        if last and turn.finish != "abort":
            return min(len(turn.prompt_ids) + len(turn.output_ids), end.computed)
        self.rolled_back += last and begin.verb == "resume"
        return begin.keep if begin.verb == "resume" else 0
