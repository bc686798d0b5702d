"""The counters that a run must hit: in the nightly stage, every one."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.core.observe.counters import GPU, PROBES, RANKS, ZERO
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.reports.schema import ProbeDemand

# Smaller stages omit expensive modes.
STAGE: Final = "nightly"


def demanded(stage: str, gpus: int) -> ProbeDemand | None:
    """The counters that a run of the stage's cells on `gpus` GPUs must hit; None if the stage, or a tier of several
    GPUs, has too few cells to hit all."""
    if stage != STAGE or gpus > 1:
        return None
    cells = len(of_gpus(stage_cells(stage), gpus))
    never = (*ZERO, *(RANKS if gpus else GPU))
    return ProbeDemand(tuple(name for name in PROBES if name not in never), ZERO, cells)
