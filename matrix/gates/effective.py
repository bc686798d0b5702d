"""Did the configuration take effect: do the running parts say so, and was it seen to happen?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.evidence import EVIDENCE, GPU_EVIDENCE, Evidence
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, Run

THRESHOLDS: Final = {
    "differences": Threshold(0, "a running part that differs from the resolved configuration is another configuration"),
    "unseen": Threshold(0, "every row of EVIDENCE was measured to hold on the reference engine"),
}
# Without these read back, nothing is known of what runs.
REQUIRED: Final = (
    "algorithm", "num_steps", "topk", "num_draft_tokens", "lag", "page_size", "num_pages", "radix_cache",
    "chunked_prefill_size", "max_running_requests",
)  # fmt: skip


@dataclass
class EffectiveGate:
    """The read-back equals what was resolved, no drafter was put aside, and all evidence due from the cell is there."""

    name: str = "effective"
    needs: frozenset[Capability] = frozenset({Capability.READBACK, Capability.COUNTERS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))
    evidence: tuple[Evidence, ...] = (*EVIDENCE, *GPU_EVIDENCE)

    def applies(self, cell: Cell) -> bool:
        """Every cell asks for something."""
        return True

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED where a required key is not read back, or no counter was hit at all."""
        missing = [key for key in REQUIRED if key not in run.readback or key not in run.resolved]
        if missing:
            return Outcome(self.name, State.NOT_MEASURED, message=f"the subject does not read back {missing[0]}")
        if not any(run.evidence.values()):
            return Outcome(self.name, State.NOT_MEASURED, message="no counter was hit, so nothing was witnessed")
        common = [key for key in run.readback if key in run.resolved]
        differing = [key for key in common if run.readback[key] != run.resolved[key]]
        demanded = [row for row in self.evidence if row.when(prepared.cell, run)]
        unseen = [row for row in demanded if not row.holds(run)]
        numbers: dict[str, Number] = {
            "keys": len(common),
            "differences": len(differing),
            "witnesses": len(demanded),
            "unseen": len(unseen),
        }
        if error := run.readback.get("drafter_error"):
            return Outcome(self.name, State.FAIL, numbers, message=f"the drafter was put aside: {error}")
        if differing:
            key = differing[0]
            text = f"{key} was resolved to {run.resolved[key]!r}, but {run.readback[key]!r} runs"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if unseen:
            return Outcome(self.name, State.FAIL, numbers, message=_sentence(unseen[0], run))
        return Outcome(self.name, State.PASS, numbers)


def _sentence(row: Evidence, run: Run) -> str:
    hits = sum(run.evidence.get(probe, 0) for probe in row.probe.split("|"))
    wanted = "more than 0" if row.seen else "0"
    return f"{row.probe.replace('|', ' or ')} was hit {hits} times, expected {wanted}: {row.why}"
