"""A run as JUnit XML for GitLab, Jenkins, Buildkite and others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from specmatrix.reports.atomic import write_text
from specmatrix.reports.render.run import RunView
from specmatrix.reports.schema import RED_STATES
from specmatrix.reports.wording import failure, shorten, waiver_text

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
