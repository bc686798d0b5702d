"""The record of a cell before anything of it ran: what every record of it starts from."""

from __future__ import annotations

from dataclasses import asdict

from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.run.tiers import repro
from specmatrix.matrix.run.tiers import tier as find_tier
from specmatrix.matrix.run.waivers import waiver_for
from specmatrix.reports.schema import CellRecord, CellResult, Start


def unrun(cell: Cell, tier: str, seed: int) -> CellResult:
    """NOT MEASURED, with what is asked of the cell in a tier, what is expected of it, and its waiver."""
    return CellRecord(
        id=cell.id,
        state="NOT MEASURED",
        start=Start(asdict(asked(cell, find_tier(tier).gpus))),
        axes=cell.values,
        repro=repro(cell.id, tier, seed),
        expect=expect(cell),
        waived=waiver_for(cell),
    )
