"""`specmatrix axes`, `cells list` and `explain`: what may run, what does, and what it resolves to."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.cells.constraints import expect, explain, explain_text, read_cell
from specmatrix.matrix.cells.model_facts import zoo_facts
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import of_gpus, select
from specmatrix.matrix.subjects.protocol import Subject, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.render.console import print_text
from specmatrix.reports.schema import REFERENCE, Json
from specmatrix.reports.wording import count, duration


def list_axes(json_: bool) -> int:
    """Print every axis with its values, the default first."""
    if json_:
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
        print(json.dumps({"schema": 1, "axes": rows}, indent=2))
        return 0
    width = max(len(axis.name) for axis in AXES)
    lines = [f"{axis.name:{width}}  {axis.scope:7}  {', '.join(axis.names)}" for axis in AXES]
    print_text("\n".join([*lines, f"{len(AXES)} axes; the first value is the default"]))
    return 0


def list_cells(tier: str, stage: str, cells: str | None, limit: int | None, subject: str, json_: bool) -> int:
    """Print the cells that a run of these options has: id, what the engine must do, and the reference engine's
    estimated seconds, or why another subject does not support the cell."""
    gpus = find_tier(tier).gpus
    engine = None if subject == REFERENCE else load_subject(subject)
    found = of_gpus(select(stage, cells, limit, REFERENCE if gpus else subject), gpus)
    if not found:
        raise ConfigError(f"tier {shown(tier)} has none of the selected cells of stage {shown(stage)}")
    if engine is not None:
        return _list_foreign(engine, found, tier, json_)
    if json_:
        rows = [{"id": cell.id, "expect": expect(cell), "seconds": cell.seconds, "axes": cell.values} for cell in found]
        print(json.dumps({"schema": 1, "cells": rows}, indent=2))
        return 0
    lines = [f"{cell.id}  {expect(cell)}  {cell.seconds:.2f} s" for cell in found]
    total = f"{count(len(found), 'cell')}, about {duration(sum(cell.seconds for cell in found))} on one thread"
    print_text("\n".join([*lines, total]))
    return 0


def _list_foreign(engine: Subject, cells: Sequence[Cell], tier: str, json_: bool) -> int:
    """Print what another subject than the reference engine makes of cells."""
    found = {
        cell: translated(engine, prepare(cell, tier, workload=engine.requests, subject=engine.name)) for cell in cells
    }
    reasons = {cell: made.reason if isinstance(made, Unsupported) else "" for cell, made in found.items()}
    if json_:
        rows = [{"id": cell.id, "unsupported": reason, "axes": cell.values} for cell, reason in reasons.items()]
        print(json.dumps({"schema": 1, "cells": rows}, indent=2))
        return 0
    lines = [f"{cell.id}  unsupported: {reason}" if reason else f"{cell.id}  runs" for cell, reason in reasons.items()]
    total = f"{count(len(cells), 'cell')}, of which {sum(map(bool, reasons.values()))} unsupported"
    print_text("\n".join([*lines, total]))
    return 0


def explain_cells(words: Sequence[str], json_: bool) -> int:
    """Explain each cell: an id, or an assignment. Words of one `axis=value` each are one assignment together."""
    single = [word for word in words if "=" in word and not word.split()[1:]]
    texts = [word for word in words if word not in single]
    if single:
        texts.insert(words.index(single[0]), " ".join(single))
    if json_:
        print(json.dumps({"schema": 1, "cells": [explain_json(read_cell(text)) for text in texts]}, indent=2))
        return 0
    print_text("\n\n".join(map(explain_text, texts)))
    return 0


def explain_json(cell: Cell) -> dict[str, Json]:
    """What a cell resolves to and why; `error` is the engine's if it refuses the cell."""
    found = explain(cell)
    record: dict[str, Json] = {
        "id": cell.id, "axes": cell.values, "resolved": None, "reasons": [], "rewrites": [], "error": None,
        "constraints": [{"name": each.name, "kind": each.kind, "why": each.why} for each in found],
    }  # fmt: skip
    try:
        fields = resolve(asked(cell), zoo_facts(cell)).as_dict()
    except ConfigError as error:
        return record | {"error": str(error)}
    reasons, rewrites = fields.pop("reasons"), fields.pop("rewrites")
    return record | {"resolved": fields, "reasons": reasons, "rewrites": rewrites}
