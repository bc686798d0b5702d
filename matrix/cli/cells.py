"""`specmatrix axes`, `cells list` and `explain`: the possible cells, those that run, and how they resolve.

`specmatrix lock`: verify the lock file, or append missing cells.
"""

from __future__ import annotations

from pathlib import Path

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell, asked, zoo_facts
from specmatrix.matrix.cells.constraints import expect, explain_text, read_cell
from specmatrix.matrix.cells.constraints import explain as constraints_of
from specmatrix.matrix.cover.lock import check as check_lock
from specmatrix.matrix.cover.lock import extend as extend_lock
from specmatrix.matrix.cover.selection import chosen_cells
from specmatrix.matrix.run.running_cells import listing
from specmatrix.matrix.subjects.http.endpoint import endpoint_of
from specmatrix.matrix.subjects.protocol import Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.subject_lock import check_own, extend_own, limited_subjects
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.render.console import counting, print_answer, print_text, waiting
from specmatrix.reports.schema import REFERENCE
from specmatrix.reports.schema import Json as JsonValue
from specmatrix.reports.wording import count, duration


def axes(json_: bool = False, _plugin: list[Path] | None = None) -> int:
    """Print every axis with its values, the default first."""
    rows = [
        {
            "axis": axis.name, "scope": axis.scope, "summary": axis.summary, "default": axis.default,
            "values": [
                {"value": value.name, "token": value.token, "seconds": value.seconds, "gpus": value.gpus}
                for value in axis.values
            ],
        }
        for axis in AXES
    ]  # fmt: skip
    width = max(len(axis.name) for axis in AXES)
    lines = [f"{axis.name:{width}}  {axis.scope:7}  {', '.join(axis.names)}" for axis in AXES]
    lines.append(f"{len(AXES)} axes; the first value is the default")
    return print_answer({"schema": 1, "axes": rows}, "\n".join(lines), json_)


def list_cells(
    tier: str = "cpu",
    stage: str = "pr",
    cells: list[str] | None = None,
    limit: int | None = None,
    subject: str = REFERENCE,
    url: str | None = None,
    baseline_url: str | None = None,
    api_key: str | None = None,
    json_: bool = False,
    _plugin: list[Path] | None = None,
) -> int:
    """Print the cells that a run of these options has: id, what the engine must do, and the reference engine's
    estimated seconds, or why another subject does not support the cell."""
    endpoint = endpoint_of(url, baseline_url, None, api_key)
    engine = None if subject == REFERENCE else load_subject(subject, endpoint)
    found = chosen_cells(tier, stage, cells, limit, listing(engine, tier, cells))
    rows, lines = list[JsonValue](), list[str]()
    with counting(len(found), "cell") as counted:
        for cell in found:
            if engine is None:
                facts: dict[str, JsonValue] = {"expect": expect(cell), "seconds": cell.seconds}
                text = f"{expect(cell)}  {cell.seconds:.2f} s"
            else:
                made = translated(engine, prepare(cell, tier, workload=engine.requests, subject=engine.name))
                facts = {"unsupported": made.reason if isinstance(made, Unsupported) else ""}
                text = f"unsupported: {facts['unsupported']}" if facts["unsupported"] else "runs"
            rows.append({"id": cell.id, **facts, "axes": cell.values})
            lines.append(f"{cell.id}  {text}")
            counted(None)
    if engine is None:
        total = f"about {duration(sum(cell.seconds for cell in found))} on one thread"
    else:
        total = f"of which {sum(not line.endswith('  runs') for line in lines)} unsupported"
    lines.append(f"{count(len(found), 'cell')}, {total}")
    return print_answer({"schema": 1, "cells": rows}, "\n".join(lines), json_)


def explain(cell: list[str], json_: bool = False, _plugin: list[Path] | None = None) -> int:
    """Explain each cell: an id, or an assignment. Words of one `axis=value` each are one assignment together. The exit
    status is 2 if one is refused, or is no cell of the matrix."""
    single = [word for word in cell if "=" in word and not word.split()[1:]]
    texts = [word for word in cell if word not in single]
    if single:
        texts.insert(cell.index(single[0]), " ".join(single))
    cells = [read_cell(text) for text in texts]
    rows = [explain_json(each) for each in cells] if json_ else []
    print_answer({"schema": 1, "cells": rows}, "" if json_ else "\n\n".join(map(explain_text, cells)), json_)
    kinds = {found.kind for each in cells for found in constraints_of(each)}
    return 2 if kinds & {"impossible", "redundant", "refused"} else 0


def explain_json(cell: Cell) -> dict[str, JsonValue]:
    """The resolution of a cell with its reasons; `error` is the engine's message if it refuses the cell."""
    found = constraints_of(cell)
    record: dict[str, JsonValue] = {
        "id": cell.id, "axes": cell.values, "resolved": None, "reasons": [], "rewrites": [], "error": None,
        "constraints": [{"name": each.name, "kind": each.kind, "why": each.why} for each in found],
    }  # fmt: skip
    try:
        fields = resolve(asked(cell), zoo_facts(cell)).as_dict()
    except ConfigError as error:
        return record | {"error": str(error)}
    reasons, rewrites = fields.pop("reasons"), fields.pop("rewrites")
    return record | {"resolved": fields, "reasons": reasons, "rewrites": rewrites}


def lock(
    check: bool = False,
    extend: bool = False,
    full: bool = False,
) -> int:
    """Print the result and return the exit status: 0 if the lock files are complete.

    ConfigError if both options are given.
    """
    if check and extend:
        raise ConfigError("--check and --extend are mutually exclusive")
    if extend:
        with waiting("covering every pair and triple"):
            changes = [extend_lock(), *map(extend_own, limited_subjects())]
        dropped, added = map(sum, zip(*changes, strict=True))
        print(f"dropped {dropped} cells, added {added}")
    with waiting("verifying the cover"):
        reports = [check_lock(full=full), *map(check_own, limited_subjects())]
    print_text("\n".join(report.text() for report in reports))
    return int(not all(report.ok for report in reports))
