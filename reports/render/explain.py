"""A page per traced cell: failing gates, the first red request, and the steps of its traced run."""

from __future__ import annotations

from pathlib import Path

from msgspec import to_builtins

from specmatrix.reports.atomic import write_text
from specmatrix.reports.render.markup import html
from specmatrix.reports.render.run import FOLDER, RunView
from specmatrix.reports.schema import PAGE_FILE, CellResult, Json


def write_explained(run: RunView, directory: Path) -> list[Path]:
    """Write `explain/ID.html` for each cell of `run.traced`, and remove pages of earlier runs. Raises ReportError."""
    folder = directory / FOLDER
    for stale in folder.glob("*.html"):
        stale.unlink()
    written = []
    for cell in run.traced:
        folder.mkdir(exist_ok=True)
        path = folder / f"{cell.id}.html"
        write_text(path, explain_page(run, cell))
        written.append(path)
    return written


def explain_page(run: RunView, cell: CellResult) -> str:
    """The page of one cell."""
    return html("explain.html.j2", run=run, cell=cell, page=PAGE_FILE, data=_data(cell))


def _data(cell: CellResult) -> Json:
    """Data for the page's script: events, and the request and token to open first, or whether to open the last step."""
    ask = cell.first_red
    at = None if ask is None or ask.token is None else {"request": ask.request, "token": ask.token}
    events = [] if cell.timeline is None else to_builtins(cell.timeline.events)
    return {"events": events, "at": at, "crashed": bool(cell.traceback)}
