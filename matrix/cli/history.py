"""`specmatrix history` and `specmatrix site`: many runs."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cover.selection import base_name
from specmatrix.matrix.run.waivers import load_waivers
from specmatrix.options import Json
from specmatrix.reports.atomic import replaced
from specmatrix.reports.history.changes import ALL_CELLS, NEWEST, SMALLEST, changes
from specmatrix.reports.history.flaky import Flaky, sentence
from specmatrix.reports.history.flaky import flaky as flaky_cells
from specmatrix.reports.history.store import History, read
from specmatrix.reports.history.store import add as add_report
from specmatrix.reports.render.console import print_answer
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.render.site import change_text, write_site
from specmatrix.reports.schema import RED_STATES, REFERENCE
from specmatrix.reports.store import load
from specmatrix.reports.wording import count

# Red cells that a line of `show` names.
MAX_NAMED: Final = 5
FOLDER: Final = Path("history")
Folder = Annotated[Path, typer.Option("--history", help="folder of the history, a Parquet file per run")]
Cells = Annotated[str | None, typer.Option(help="only cells of this id or selector")]


def add(
    reports: Annotated[list[Path], typer.Argument(metavar="OUT", help="reports, or the folders of runs")],
    folder: Folder = FOLDER,
    base: Annotated[
        Path | None, typer.Option(help="also keep each here as TIER-STAGE.jsonl.gz, for `specmatrix review --base`")
    ] = None,
) -> int:
    """Add each report; one that is there already stays as it is."""
    for path in reports:
        run, new = add_report(path, folder)
        print(f"{'added' if new else 'already there:'} {run}")
        if base is not None:
            report = load(path)
            with replaced(base / base_name(report.header)) as file:
                file.write(gzip.compress(report.path.read_bytes(), mtime=0))
    return 0


def show(
    folder: Folder = FOLDER,
    cells: Cells = None,
    last: Annotated[int, typer.Option(min=1, help="number of newest runs to print")] = 20,
    json_: Json = False,
) -> int:
    """Print the newest runs, the newest first, with the selected cells that are red."""
    history = read(folder)
    chosen = set(_selected(history, cells))
    rows: list[dict[str, Any]] = []
    for run in range(len(history.runs) - 1, max(-1, len(history.runs) - 1 - last), -1):
        line, counts = history.runs.loc[run], history.counts(run)
        red = [row for row in history.red if row.run == run and row.cell in chosen]
        rows.append(
            {
                "run": line["run"], "created": line["created"], "tier": line["tier"],
                "commit": line["commit"][:12] + " + changes" * bool(line["dirty"]), "version": line["version"],
                "stage": line["stage"], "seed": int(line["seed"]), "subject": line["subject"],
                "cells": sum(counts.values()), "red": sum(counts[state] for state in RED_STATES),
                "red_cells": [
                    {"cell": history.cells[row.cell], "gates": row.gates, "waived": row.waived} for row in red
                ],
            }
        )  # fmt: skip
    lines = []
    for run, row in zip(range(len(history.runs) - 1, -1, -1), rows, strict=False):
        what = f"{row['subject']} {row['tier']} {row['stage']} seed {row['seed']}"
        verdict = f"{row['red']:,} of {count(row['cells'], 'cell')} red"
        lines.append(f"{row['created'][:16].replace('T', ' ')}  {history.builds[run]}  {what}  {verdict}")
        for cell in row["red_cells"][:MAX_NAMED]:
            lines.append(f"  {cell['cell']}: {', '.join(cell['gates'])}{' (waived)' * cell['waived']}")
        if (more := len(row["red_cells"]) - MAX_NAMED) > 0:
            lines.append(f"  and {more:,} more")
    return print_answer({"schema": 1, "runs": rows}, "\n".join(lines), json_)


def trend(
    folder: Folder = FOLDER,
    cells: Cells = None,
    measure: Annotated[
        list[str] | None, typer.Option(help="acceptance, accuracy, speed or seconds; repeatable; default: all")
    ] = None,
    json_: Json = False,
) -> int:
    """Print the change points, the newest first."""
    for name in measure or ():
        if name not in SMALLEST:
            raise ConfigError(f"measure {shown(name)} is unknown; it must be one of {', '.join(SMALLEST)}")
    history = read(folder)
    with waiting("searching for change points"):
        found = changes(history, measure or tuple(SMALLEST), _selected(history, cells) if cells else ())
    rows = [
        {
            "cell": change.cell or None, "measure": change.measure, "old": change.old, "new": change.new,
            "before": history.builds[change.before], "after": history.builds[change.after],
            "runs_before": change.lasted[0], "runs_since": change.lasted[1],
        }
        for change in found
    ]  # fmt: skip
    lines = [
        f"{change.measure} of {'all cells' if change.cell == ALL_CELLS else change.cell}: "
        f"{change_text(history, change)}, {count(change.lasted[1], 'run')} ago"
        for change in found
    ]
    lines.append(f"{count(len(found), 'change point')} in the newest {min(NEWEST, len(history.runs))} runs")
    return print_answer({"schema": 1, "changes": rows}, "\n".join(lines), json_)


def flaky(
    folder: Folder = FOLDER,
    cells: Cells = None,
    waivers: Annotated[Path | None, typer.Option(help="print the waivers that this file lacks, as YAML")] = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="days until these waivers expire")] = 14,
    json_: Json = False,
) -> int:
    """Print the flaky cells, or with `waivers` the entries that this file lacks."""
    history = read(folder)
    chosen = {history.cells[cell] for cell in _selected(history, cells)}
    found = [row for row in flaky_cells(history) if row.cell in chosen]
    if waivers is not None:
        entries = list(_entries(found, waivers, (date.today() + timedelta(days)).isoformat()))
        if entries:
            print(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120), end="")
        else:
            print(f"# {waivers} lacks no waiver of a flaky cell")
        return 0
    lines = []
    for row in found:
        red, green = history.runs["run"][row.first_red], history.runs["run"][row.first_green]
        lines += [f"{row.cell}: {sentence(row)}", f"  red in {red}, green in {green}"]
    lines.append(f"{count(len({row.cell for row in found}), 'flaky cell')} in {count(len(history.runs), 'run')}")
    return print_answer({"schema": 1, "flaky": [row._asdict() for row in found]}, "\n".join(lines), json_)


def site(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="folder for index.html and what it opens")],
    folder: Folder = FOLDER,
    repository: Annotated[
        str, typer.Option(help="address that commits link to, such as https://github.com/owner/name")
    ] = "",
) -> int:
    """Write the dashboard and print where it is."""
    if repository and not repository.startswith(("https://", "http://")):
        raise ConfigError(f"--repository must be like https://github.com/owner/name, got {shown(repository)}")
    history = read(folder)
    with waiting(f"drawing {count(len(history.runs), 'run')}"):
        page = write_site(history, out, repository)
    print(f"dashboard of {count(len(history.runs), 'run')} of {count(len(history.cells), 'cell')}: {page}")
    return 0


def _selected(history: History, cells: str | None) -> list[int]:
    """Indices of the selected cells; all without a selector. ConfigError if none matches."""
    if cells is None:
        return list(range(len(history.cells)))
    picks = parse_selector(cells)
    found = [index for index, cell in enumerate(history.cells) if (known := _known(cell)) is not None and picks(known)]
    if not found:
        raise ConfigError(f"no cell of the history is selected by {shown(cells)}; `specmatrix history show` names them")
    return found


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
            entry = {"cells": row.cell, "gate": row.gate, "kind": "flaky", "reason": sentence(row), "expiry": expiry}
            yield entry if row.subject == REFERENCE else entry | {"subject": row.subject}
