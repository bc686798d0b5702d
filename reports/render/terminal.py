"""Runs and comparisons on a terminal, and runs as JUnit XML for GitLab, Jenkins, Buildkite and others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.console import Console

from specmatrix.reports.compare.cell_state import ChangeState, Comparison
from specmatrix.reports.render.console import StdoutConsole
from specmatrix.reports.render.failing_request import ask_lines
from specmatrix.reports.render.markup import rich
from specmatrix.reports.render.run import RunView
from specmatrix.reports.schema import PAGE_FILE, RED_STATES, CellResult
from specmatrix.reports.store import write_text
from specmatrix.reports.summary import STATE_KEYS
from specmatrix.reports.wording import failure, shorten, shorten_rewrite, waiver_text

# Characters that XML 1.0 forbids even when escaped.
_FORBIDDEN: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAX_MESSAGE: Final = 1000


def write_junit(run: RunView, path: Path) -> None:
    """Write the run to `path`. ReportError if it cannot be written."""
    write_text(path, junit(run))


def junit(run: RunView) -> str:
    """One test case per cell: a crash is an error, a failing gate a failure; unsupported and waived cells are skipped,
    the latter with their waiver. Both counts are properties of the suite.
    """
    waived = {cell.id: waiver_text(cell.waived) for cell in run.waived if cell.waived is not None}
    name = f"specmatrix {run.header.tier} {run.header.stage}"
    suite = Element("testsuite", name=name, timestamp=run.header.created, time=f"{run.summary.seconds:.3f}")
    SubElement(SubElement(suite, "properties"), "property", name="waived", value=str(len(waived)))
    totals = dict.fromkeys(("failure", "error", "skipped"), 0)
    for cell in run.cells:
        case = SubElement(suite, "testcase", classname=name, name=_text(cell.id), time=f"{cell.seconds:.3f}")
        if cell.state == "PASS":
            continue
        red = cell.state in RED_STATES and cell.id not in waived
        kind = "skipped" if not red else "error" if cell.state == "INFRA" else "failure"
        why = f"waived: {waived[cell.id]}; {failure(cell)}" if cell.id in waived else failure(cell)
        found = SubElement(case, kind, message=_text(shorten(why, _MAX_MESSAGE)))
        if red:
            found.set("type", cell.state)
            found.text = _text(f"{cell.repro}\n{cell.traceback}".strip())
        totals[kind] += 1
    suite.set("tests", str(len(run.cells)))
    suite.set("failures", str(totals["failure"]))
    suite.set("errors", str(totals["error"]))
    suite.set("skipped", str(totals["skipped"]))
    indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


MAX_LISTED = 12
# Maximum lines shown of an engine's log.
LOG_LINES = 3


def show_run(view: RunView, out: Path, explained: Sequence[Path], json_: bool, junit: Path | None = None) -> None:
    """Print a run, as text or as the JSON of its summary, and write it to `junit`. explained: pages of steps."""
    if junit is not None:
        write_junit(view, junit)
    if json_:
        print(json.dumps(view.summary.to_json(), indent=2))
        return
    console = StdoutConsole()
    print_run(view, console)
    for page in explained:
        console.print(f"explained: {page}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {out / PAGE_FILE}", highlight=False, markup=False, soft_wrap=True)


def print_run(run: RunView, console: Console) -> None:
    """Print a run's verdict, its red cells with one repro command each, and what they have in common."""
    rewritten: Counter[str] = Counter()
    for rewrite in run.rewrites:
        rewritten[shorten_rewrite(rewrite.signature)] += rewrite.cells
    listed = [cell for group in run.groups for cell in group.cells][:MAX_LISTED]
    values = {"listed": listed, "rewritten": rewritten, "evidence": partial(_evidence, run=run)}
    _say(console, rich("run.txt.j2", MAX_LISTED, run=run, states=STATE_KEYS, **values))


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print a comparison: differing inputs, changed cells, coverage, rewrites, and last the verdict."""
    _say(console, rich("comparison.txt.j2", MAX_LISTED, comparison=comparison, states=ChangeState))


def _say(console: Console, text: str) -> None:
    # Unwrapped, uncoloured lines, so that a command can be copied.
    console.print(text, highlight=False, soft_wrap=True)


def _evidence(cell: CellResult, run: RunView) -> list[str]:
    """A red cell's first red request, at most eight lines, in full for the first red cells only; if the engine exited,
    the end of its log."""
    if log := (cell.error or "").splitlines()[1:]:
        return [shorten(line, 240) for line in log[-LOG_LINES:]]
    raised = [f"raised in {cell.verb}; the whole traceback is in the report"] * bool(cell.verb and cell.traceback)
    if cell.first_red is None or cell.id not in run.examples:
        return raised
    return raised + ask_lines(cell.first_red)
