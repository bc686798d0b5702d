"""Checks the identities between the speculative metrics of each answer, as listed in sglang#33518."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, nan
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Outcome, PackageGate, State
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

COUNTS: Final = ("spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts")


@dataclass
class IdentitiesGate(PackageGate):
    """Five identities over `Answer.meta_info` with SGLang's keys, and that the rounds can have emitted the tokens."""

    name: str = "identities"
    needs: frozenset[Capability] = frozenset({Capability.HISTOGRAM})

    def applies(self, cell: Cell) -> bool:
        """Cells with a drafter."""
        return cell.algorithm != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no answer had a verify round."""
        rounds, faults = 0, []
        for answer in run.answers:
            if answer.refusal or len(answer.output_ids) < 2:
                continue
            rounds += int(answer.meta_info.get("spec_verify_ct") or 0)
            if fault := identity_fault(answer, None if prepared.cell.adapts else _width(run.resolved)):
                faults.append((answer.name, f"{answer.name} {fault}"))
        numbers = {"rounds": rounds, "faults": len(faults)}
        if len(faults) > self.thresholds["faults"]:
            return Outcome(self.name, State.FAIL, numbers, message=faults[0][1], blame=Blame(faults[0][0]))
        return self.verdict(numbers, missing="" if rounds else "no answer reports a verify round")


def _width(resolved: Mapping[str, Any]) -> int | None:
    """Draft tokens of every round; None if they differ or are not known."""
    nodes = resolved.get("num_draft_tokens")
    return None if nodes is None or resolved.get("speculative_ragged_verify") else int(nodes) - 1


def identity_fault(answer: Answer, width: int | None) -> str:
    """A contradiction among an answer's metrics, or "". width: draft tokens of every round, None if they differ."""
    info = answer.meta_info
    # A text without a repeated n-gram has no round with a draft.
    if not any(key in info for key in COUNTS):
        return ""
    if lacking := [key for key in COUNTS if type(info.get(key)) is not int]:
        return f"reports {lacking[0]} {info.get(lacking[0])!r}; it must be an integer"
    rounds, correct, proposed = (int(info[key]) for key in COUNTS)
    tokens, histogram = int(info["completion_tokens"]), info.get("spec_correct_drafts_histogram")
    if not rounds:
        return ""
    if tokens != len(answer.output_ids):
        return f"reports completion_tokens {tokens}; it has {len(answer.output_ids)}"
    ratios = {"spec_accept_length": tokens / rounds, "spec_accept_rate": correct / max(1, proposed)}
    for key, value in ratios.items():
        if not isclose(float(info.get(key, nan)), value, rel_tol=1e-9):
            return f"reports {key} {info.get(key)}; its counts give {value:.6g}"
    if width is not None and proposed != rounds * width:
        return f"reports {proposed} proposed drafts; {rounds} rounds of {width} are {rounds * width}"
    if not isinstance(histogram, list) or sum(histogram) != rounds:
        return f"reports the histogram {histogram}, which must sum to its {rounds} rounds"
    weighed = sum(drafts * count for drafts, count in enumerate(histogram))
    if weighed != correct:
        return f"reports the histogram {histogram}, which holds {weighed} accepted drafts, and {correct} of them"
    # Each round emits its accepted drafts and the target's own token; the first token is the prefill's.
    if tokens > 1 + answer.moves + rounds + correct:
        return f"has {tokens} tokens; its prefill and rounds emitted {1 + rounds + correct}"
    return ""
