"""`specmatrix history`: many runs."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import yaml

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cover.selection import base_name
from specmatrix.matrix.run.waivers import load_waivers
from specmatrix.reports.history import Flaky, read
from specmatrix.reports.history import add as add_report
from specmatrix.reports.history import flaky as flaky_cells
from specmatrix.reports.render.console import print_answer
from specmatrix.reports.schema import REFERENCE
from specmatrix.reports.store import load, replaced
from specmatrix.reports.wording import count

FOLDER: Final = Path("history")


def add(reports: list[Path], folder: Path = FOLDER, base: Path | None = None) -> int:
    """Add each report; one that is there already stays as it is."""
    for path in reports:
        run, new = add_report(path, folder)
        print(f"{'added' if new else 'already there:'} {run}")
        if base is not None:
            report = load(path)
            with replaced(base / base_name(report.header)) as file:
                file.write(gzip.compress(report.path.read_bytes(), mtime=0))
    return 0


def flaky(
    folder: Path = FOLDER, cells: str | None = None, waivers: Path | None = None, days: int = 14, json_: bool = False
) -> int:
    """Print the flaky cells, or with `waivers` the entries that this file lacks."""
    picks = None if cells is None else parse_selector(cells)
    rows = read(folder)
    found = [
        row for row in flaky_cells(rows) if picks is None or ((known := _known(row.cell)) is not None and picks(known))
    ]
    if waivers is not None:
        entries = list(_entries(found, waivers, (date.today() + timedelta(days)).isoformat()))
        if entries:
            print(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120), end="")
        else:
            print(f"# {waivers} lacks no waiver of a flaky cell")
        return 0
    lines = []
    for row in found:
        lines += [f"{row.cell}: {row.sentence}", f"  red in {row.first_red}, green in {row.first_green}"]
    lines.append(f"{count(len({row.cell for row in found}), 'flaky cell')} in {count(rows['run'].nunique(), 'run')}")
    return print_answer({"schema": 1, "flaky": [row._asdict() for row in found]}, "\n".join(lines), json_)


def _known(cell: str) -> Cell | None:
    """A cell by its id; None if the axes have changed since."""
    try:
        return Cell.from_id(cell)
    except ConfigError:
        return None


def _entries(found: Iterable[Flaky], file: Path, expiry: str) -> Iterable[dict[str, str]]:
    """The waivers that a file lacks; expired ones do not count."""
    today = date.today().isoformat()
    rules = load_waivers(file) if file.exists() else ()
    there = {(rule.cells, rule.gate, rule.subject) for rule in rules if rule.expiry >= today}
    for row in found:
        if (row.cell, row.gate, row.subject) not in there:
            entry = {"cells": row.cell, "gate": row.gate, "kind": "flaky", "reason": row.sentence, "expiry": expiry}
            yield entry if row.subject == REFERENCE else entry | {"subject": row.subject}
