"""Checks that a foreign subject's plain decoding is that of transformers and of the reference engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State, thresholds
from specmatrix.matrix.gates.pairing import TIE_NATS, first_difference
from specmatrix.matrix.oracles.precision import margin
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import Oracle, oracle_index, oracle_of, rewriting

HALF: Final = ("bfloat16", "float16", "half")


@dataclass
class OracleGate(PackageGate):
    """Compares the baseline's greedy requests on the oracle's prompts with the oracle, along the oracle's text.

    Two libraries round differently. If the baseline deviates from the oracle where the margin of the oracle's two best
    tokens is below `tie_nats` (in half precision below `precision`'s), the tie is counted, the baseline reruns from the
    oracle's token, and the comparison continues there (`Run.resumed`).
    """

    name: str = "oracle"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: {"tie_nats": TIE_NATS} | thresholds("oracle"))
    half_nats: float = field(default_factory=lambda: thresholds("precision")["tie_nats"])
    oracle: Callable[[str], Oracle | None] = oracle_of
    margin: Callable[[str, RequestSpec, int], float] = margin

    def applies(self, cell: Cell) -> bool:
        """Cells with greedy requests; prompts that the oracle lacks are skipped."""
        return cell.sampling in ("greedy", "mixed")

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if the target has no oracle, or no token was compared."""
        oracle = self.oracle(prepared.cell.target)
        if oracle is None:
            text = "the target has no transformers oracle continuations, so the baseline itself is unverified"
            return self.not_measured(text)
        answers = {answer.name: answer for answer in baseline.answers}
        compared, ties, wrong, blame, half = 0, [], [], None, in_half(baseline)
        for request in baseline.requests:
            if not comparable(request):
                continue
            expected, start, index = oracle.continuation(request), 0, None
            for start, got in ((0, answers[request.name].output_ids), *baseline.resumed.get(request.name, ())):
                index = first_difference(expected[start:], got, prefix=True)
                compared += min(len(expected) - start, len(got)) if index is None else index
                if index is not None and self.is_tie(prepared.cell.target, request, start + index, half):
                    ties.append(f"{request.name}@{start + index}")
                    index = None
            if index is not None:
                blame = blame or Blame(request.name, index, got=got, expected=expected[start:])
                wrong.append(
                    f"{request.name} at token {start + index}: {got[index]} instead of {expected[start + index]}"
                )
        numbers: dict[str, Number] = {
            "oracle_tokens": compared, "ties": len(ties), "tied_at": ", ".join(ties), "wrong": len(wrong),
        }  # fmt: skip
        if wrong:
            text = f"plain decoding of {len(wrong)} requests differs from the transformers oracle, first {wrong[0]}"
            accept = rewriting(prepared.cell.target)
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=blame, accept=accept)
        return self.verdict(numbers, missing="" if compared else "no token was compared with the oracle")

    def is_tie(self, target: str, request: RequestSpec, index: int, half: bool = False) -> bool:
        """Whether the oracle's two best tokens at an index of its continuation are a tie. half: in half precision."""
        return self.margin(target, request, index) < (self.half_nats if half else self.thresholds["tie_nats"])

    def text(self, target: str, request: RequestSpec) -> tuple[int, ...]:
        """The oracle's tokens after a request's prompt; empty if it has none."""
        oracle = self.oracle(target)
        return oracle.continuation(request) if oracle is not None and comparable(request) else ()

    def next_tie(self, target: str, request: RequestSpec, start: int, got: Sequence[int], half: bool) -> int | None:
        """Index in the oracle's continuation at which tokens from index `start` on deviate from it by a tie; None if
        they do not. half: as in `is_tie`."""
        index = first_difference(self.text(target, request)[start:], got, prefix=True)
        return start + index if index is not None and self.is_tie(target, request, start + index, half) else None


def in_half(run: Run) -> bool:
    """Whether a run is in half precision, as far as its engine says."""
    return run.resolved.get("dtype") in HALF


def comparable(request: RequestSpec) -> bool:
    """Whether the oracle has the continuation of a request's prompt."""
    return request.temperature == 0 and oracle_index(request) is not None
