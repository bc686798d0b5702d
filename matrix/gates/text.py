"""Compares the texts of a subject without token ids with the oracle's and the baseline's."""

from __future__ import annotations

from dataclasses import dataclass, field

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate
from specmatrix.matrix.gates.oracle import OracleGate, comparable
from specmatrix.matrix.subjects.protocol import Answer, Run
from specmatrix.matrix.workloads.finish import ending, text_of
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec


@dataclass
class TextGate(PackageGate):
    """Greedy texts: the run's equal the baseline's, where there is one, and the oracle's on its prompts.

    target_oracle: None if the server tokenises prompts itself, so that the oracle's tokens differ.
    """

    name: str = "text"
    target_oracle: OracleGate | None = field(default_factory=OracleGate)

    def applies(self, cell: Cell) -> bool:
        """Cells with greedy requests."""
        return cell.sampling in ("greedy", "mixed", "rules")

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no text was compared."""
        target, plain = prepared.cell.target, {answer.name: answer for answer in baseline.answers}
        answers = {answer.name: answer for answer in run.answers}
        characters, ties, wrong = 0, 0, list[str]()
        for request in run.requests:
            answer, undrafted = answers[request.name], plain.get(request.name)
            if request.temperature or answer.refusal or answer.finish == "abort":
                continue
            due = self._due(target, request)
            for other in (due, None if baseline is run or undrafted is None else undrafted.text):
                if other is None:
                    continue
                characters += len(other)
                at = _parting(answer, other, whole=other is not due)
                if at is None:
                    continue
                if self._tied(target, request, other[:at]):
                    ties += 1
                else:
                    wrong.append(
                        f"{request.name} at character {at}: {answer.text[at : at + 20]!r}, not {other[at : at + 20]!r}"
                    )
        numbers: dict[str, Number] = {"characters": characters, "ties": ties, "wrong": len(wrong)}
        fault = ""
        if len(wrong) > self.thresholds["wrong"]:
            fault = f"{len(wrong)} texts differ from the oracle or from plain decoding, first {wrong[0]}"
        return self.verdict(numbers, fault, "" if characters else "no text was compared")

    def _due(self, target: str, request: RequestSpec) -> str | None:
        """The text that the oracle implies, as far as it goes; None if it has none."""
        if self.target_oracle is None or request.ruled or not comparable(request):
            return None
        ids = self.target_oracle.text(target, request)
        return ending(request, ids, target).text if ids else None

    def _tied(self, target: str, request: RequestSpec, common: str) -> bool:
        """Whether the first of the oracle's tokens after a common text is a tie."""
        if self.target_oracle is None or not comparable(request):
            return False
        ids = self.target_oracle.text(target, request)
        places = [count for count in range(len(ids)) if common.startswith(text_of(ids[:count]))]
        return bool(places) and self.target_oracle.is_tie(target, request, places[-1])


def _parting(answer: Answer, other: str, whole: bool) -> int | None:
    """Index of the first character at which an answer's text differs from another; None if none. whole: text past the
    end of the other also counts, unlike for the oracle's, which ends with its tokens."""
    text = answer.text
    shorter = min(len(text), len(other))
    at = next((i for i in range(shorter) if text[i] != other[i]), shorter)
    if at < shorter or len(text) < len(other) or (whole and len(text) != len(other)):
        return at
    return None
