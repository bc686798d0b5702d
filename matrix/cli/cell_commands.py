"""The commands that show what may run. Each one's code is imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from specmatrix.matrix.cli.options import Json
from specmatrix.reports.schema import REFERENCE

cells_app = typer.Typer(help="List the cells of the lock file.", rich_markup_mode=None)


def axes(json_: Json = False) -> int:
    """List the axes of the matrix and their values."""
    from specmatrix.matrix.cli.commands.cells import list_axes

    return list_axes(json_)


@cells_app.command("list")
def cells_list(
    tier: Annotated[str, typer.Option(help="hardware of the cells: cpu, gpu1, gpu2, gpu4 or gpu8")] = "cpu",
    stage: Annotated[str, typer.Option(help="smoke, pr or nightly; product: all possible cells")] = "pr",
    cells: Annotated[str | None, typer.Option(help="select cells, as `run` does")] = None,
    limit: Annotated[int | None, typer.Option(help="list at most this many cells")] = None,
    subject: Annotated[str, typer.Option(help="the engine under test, by a name of `specmatrix subjects`")] = REFERENCE,
    json_: Json = False,
) -> int:
    """List the cells that a run of the same options has."""
    from specmatrix.matrix.cli.commands.cells import list_cells

    return list_cells(tier, stage, cells, limit, subject, json_)


def explain(
    cell: Annotated[list[str], typer.Argument(metavar="CELL", help="ids of cells, or axis=value ... of one")],
    json_: Json = False,
) -> int:
    """Print what cells resolve to, and the constraints on them."""
    from specmatrix.matrix.cli.commands.cells import explain_cells

    return explain_cells(cell, json_)
