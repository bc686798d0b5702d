"""The cost of a run, and the known faults that the next cheaper stage would have missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specmatrix.reports.schema import CellResult, CheaperStage, Json
from specmatrix.reports.store import Report
from specmatrix.reports.wording import count, duration

CPU_TIER: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Cost:
    """Core time and engine starts of a run's cells and their baselines, and the GPU time of the run, 0 if unknown.
    cheaper: None if no stage is cheaper, or if only part of a stage ran."""

    core_seconds: float
    gpu_seconds: float
    engine_starts: int
    cheaper: CheaperStage | None

    @property
    def message(self) -> str:
        """The cost in one sentence."""
        gpus = f", {duration(self.gpu_seconds)} of GPU time" if self.gpu_seconds else ""
        return f"cost: {duration(self.core_seconds)} of core time{gpus}, {count(self.engine_starts, 'engine start')}"

    @property
    def saving(self) -> str:
        """One sentence on the faults that the cheaper stage would have missed; "" without one."""
        less = self.cheaper
        if less is None:
            return ""
        stage = f"stage {less.stage} ({count(less.cells, 'cell')}, about {duration(less.seconds)} of core time)"
        faults = f"the {count(less.faults, 'fault')} that cells of this stage find"
        missed = less.faults - less.found
        if not missed:
            return f"{stage} is known to find all of {faults}"
        return f"{stage} has no cell that is known to find {missed:,} of {faults}"

    def to_json(self) -> dict[str, Json]:
        """The stable form for `summary.json`."""
        return {
            "core_seconds": round(self.core_seconds, 3),
            "gpu_seconds": round(self.gpu_seconds, 3),
            "engine_starts": self.engine_starts,
            "cheaper": None
            if self.cheaper is None
            else {name: getattr(self.cheaper, name) for name in CheaperStage.__struct_fields__},
        }


def cost_of(report: Report) -> Cost:
    """The cost of a report's cells: a cell holds a core for each of its ranks. Many of them share a GPU, which is held
    for the whole run."""
    held = [(cell.seconds * _ranks(cell), cell.engine_starts) for cell in report]
    seconds = sum(seconds for seconds, _ in held)
    return Cost(seconds, report.gpu_seconds or 0.0, sum(starts for _, starts in held), report.header.cheaper)


def _ranks(cell: CellResult) -> int:
    text = cell.axes.get("tp", "1")
    return int(text) if text.isdecimal() and 1 <= int(text) <= 1024 else 1
