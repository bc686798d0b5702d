"""`specmatrix compare`: what changed from one report to another."""

from __future__ import annotations

import json
from pathlib import Path

from specmatrix.reports.compare import compare, comparison_json, read_acknowledgements
from specmatrix.reports.render.comparison import write_comparison
from specmatrix.reports.render.console import StdoutConsole
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.store import load


def compare_reports(base: Path, head: Path, acknowledged: Path | None, out: Path | None, json_: bool) -> int:
    """Print the comparison and return the exit status: 0 if the verdict is green. ReportError on a bad report."""
    entries = read_acknowledgements(acknowledged) if acknowledged else ()
    with waiting(f"comparing {base} and {head}"):
        comparison = compare(load(base), load(head), entries)
        if out is not None:
            write_comparison(comparison, out)
    if json_:
        print(json.dumps(comparison_json(comparison), indent=2))
    else:
        print_comparison(comparison, StdoutConsole())
    return int(comparison.verdict != "green")
