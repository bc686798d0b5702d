"""The counters that a run must hit: in the nightly stage, every one."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.core.observe.counters import COUNTERS, GPU, RANKS, ZERO
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.reports.schema import CounterDemand

# Smaller stages omit expensive modes.
STAGE: Final = "nightly"


def demanded(stage: str, gpus: int) -> CounterDemand | None:
    """The counters that a run of the stage's cells on `gpus` GPUs must hit; None if the stage, or a tier of several
    GPUs, has too few cells to hit all."""
    if stage != STAGE or gpus > 1:
        return None
    cells = len(of_gpus(stage_cells(stage), gpus))
    never = (*ZERO, *(RANKS if gpus else GPU))
    return CounterDemand(tuple(name for name in COUNTERS if name not in never), ZERO, cells)
