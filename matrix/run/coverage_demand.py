"""What the probes of a stage must show: the widest stage that runs by itself hits every one of them."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.core.observe.counters import GPU, PROBES, RANKS, ZERO
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.reports.schema import ProbeDemand

# A smaller stage leaves modes out for their price.
STAGE: Final = "nightly"


def demanded(stage: str, gpus: int) -> ProbeDemand | None:
    """What a run of the stage's cells with so many GPUs must show; None for a stage, or several GPUs, whose cells are
    too few for all of it."""
    if stage != STAGE or gpus > 1:
        return None
    cells = len(of_gpus(stage_cells(stage), gpus))
    never = (*ZERO, *(RANKS if gpus else GPU))
    return ProbeDemand(tuple(name for name in PROBES if name not in never), ZERO, cells)
