"""`specmatrix compare`: what changed from one report to another."""

from __future__ import annotations

import json
from pathlib import Path

from specmatrix.reports.compare import compare as compare_reports
from specmatrix.reports.compare import comparison_json, read_acknowledgements
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.render.console import StdoutConsole, waiting
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.store import gc_paused, load


def compare(
    base: Path, head: Path, acknowledge: Path | None = None, out: Path | None = None, json_: bool = False
) -> int:
    """0 if the verdict is green. ReportError on a bad report."""
    entries = read_acknowledgements(acknowledge) if acknowledge else ()
    with waiting(f"comparing {base} and {head}"), gc_paused():
        comparison = compare_reports(load(base), load(head), entries)
        if out is not None:
            write_comparison(comparison, out)
    if json_:
        print(json.dumps(comparison_json(comparison), indent=2))
    else:
        print_comparison(comparison, StdoutConsole())
    return int(comparison.verdict != "green")
