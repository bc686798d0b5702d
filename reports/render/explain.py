"""A page per traced cell: what is red, the first red request, and every step of its second run to step through."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import to_builtins

from specmatrix.reports.atomic import write_text
from specmatrix.reports.render.markup import html
from specmatrix.reports.render.run import RunView
from specmatrix.reports.schema import CellResult, Json

FOLDER: Final = "explain"
# Pages of one run; each holds its cell's whole trace.
MOST_PAGES: Final = 20


def write_explained(run: RunView, directory: Path) -> list[Path]:
    """Write `explain/ID.html` for each traced cell, at most MOST_PAGES, and remove those of an earlier run.

    ReportError if that cannot be done.
    """
    folder = directory / FOLDER
    for stale in folder.glob("*.html"):
        stale.unlink()
    written = []
    for cell in [cell for cell in run.cells if cell.timeline is not None][:MOST_PAGES]:
        folder.mkdir(exist_ok=True)
        path = folder / f"{cell.id}.html"
        write_text(path, explain_page(run, cell))
        written.append(path)
    return written


def explain_page(run: RunView, cell: CellResult) -> str:
    """The page of one cell."""
    return html("explain.html.j2", run=run, cell=cell, neighbour=run.neighbours.get(cell.id), data=_data(cell))


def _data(cell: CellResult) -> Json:
    """What the script reads: the events, and the request and the token to start at."""
    ask = cell.first_red
    at = None if ask is None or ask.token is None else {"request": ask.request, "token": ask.token}
    return {"events": [] if cell.timeline is None else to_builtins(cell.timeline.events), "at": at}
