"""The commands of many runs. Each one's code is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmatrix.matrix.cli.options import Json

history = typer.Typer(help="Keep many runs; print change points and flaky cells.", rich_markup_mode=None)
FOLDER = Path("history")
Folder = Annotated[Path, typer.Option("--history", help="folder of the history, a Parquet file per run")]
Cells = Annotated[str | None, typer.Option(help="only cells of this id or selector")]


@history.command("add")
def history_add(
    reports: Annotated[list[Path], typer.Argument(metavar="OUT", help="reports, or the folders of runs")],
    folder: Folder = FOLDER,
) -> int:
    """Add reports to the history."""
    from specmatrix.matrix.cli.commands.history import add_reports

    return add_reports(reports, folder)


@history.command("show")
def history_show(
    folder: Folder = FOLDER,
    cells: Cells = None,
    last: Annotated[int, typer.Option(help="number of newest runs to print")] = 20,
    json_: Json = False,
) -> int:
    """Print the newest runs and their red cells."""
    from specmatrix.matrix.cli.commands.history import show

    return show(folder, cells, last, json_)


@history.command("trend")
def history_trend(
    folder: Folder = FOLDER,
    cells: Cells = None,
    measure: Annotated[
        list[str] | None, typer.Option(help="acceptance, accuracy, speed or seconds; repeatable; default: all")
    ] = None,
    json_: Json = False,
) -> int:
    """Print the change points of what was measured."""
    from specmatrix.matrix.cli.commands.history import trend

    return trend(folder, cells, measure or [], json_)


@history.command("flaky")
def history_flaky(
    folder: Folder = FOLDER,
    cells: Cells = None,
    waivers: Annotated[Path | None, typer.Option(help="print the waivers that this file lacks, as YAML")] = None,
    days: Annotated[int, typer.Option(help="days until these waivers expire")] = 14,
    json_: Json = False,
) -> int:
    """Name the cells that flip although nothing changed."""
    from specmatrix.matrix.cli.commands.history import print_flaky

    return print_flaky(folder, cells, waivers, days, json_)


def site(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="folder for index.html and what it opens")],
    folder: Folder = FOLDER,
    repository: Annotated[
        str, typer.Option(help="address that commits link to, such as https://github.com/owner/name")
    ] = "",
) -> int:
    """Write a dashboard of the history.

    It shows runs and cells, trends, and each run's own page.
    """
    from specmatrix.matrix.cli.commands.history import write_dashboard

    return write_dashboard(out, folder, repository)
