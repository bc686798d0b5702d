"""The files beside a report, and those of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from specmatrix.reports.atomic import write_text
from specmatrix.reports.compare.cell_state import Comparison
from specmatrix.reports.compare.compare import comparison_record
from specmatrix.reports.render.comparison_markdown import comparison_markdown
from specmatrix.reports.render.comparison_page import comparison_page
from specmatrix.reports.render.run_markdown import run_markdown
from specmatrix.reports.render.run_page import run_page
from specmatrix.reports.render.view import RunView, view
from specmatrix.reports.schema import MARKDOWN_FILE, PAGE_FILE
from specmatrix.reports.store import Report
from specmatrix.reports.summary import write_summary

COMPARISON_NAME: Final = "comparison"


def write_run(report: Report) -> RunView:
    """Write `summary.json`, `report.md` and `report.html` beside the report; returns what they show.

    Raises ReportError if the place cannot be written or a line of the report is broken.
    """
    run = view(report)
    directory = report.path.parent
    write_summary(run.summary, directory)
    write_text(directory / MARKDOWN_FILE, run_markdown(run))
    write_text(directory / PAGE_FILE, run_page(run))
    return run


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write `comparison.json` (everything), `comparison.md` and `comparison.html` into `directory`.

    Raises ReportError if the place cannot be written.
    """
    text = json.dumps(comparison_record(comparison), indent=1) + "\n"
    write_text(directory / f"{COMPARISON_NAME}.json", text)
    write_text(directory / f"{COMPARISON_NAME}.md", comparison_markdown(comparison))
    write_text(directory / f"{COMPARISON_NAME}.html", comparison_page(comparison))
