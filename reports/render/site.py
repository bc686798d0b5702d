"""A static dashboard of many runs: `index.html`, a script per cell with what was measured, and the runs' own pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specmatrix.reports.atomic import check_place, held, replaced, write_text, writes
from specmatrix.reports.history.changes import ALL_CELLS, ChangePoint, changes, over_cells
from specmatrix.reports.history.flaky import flaky, sentence
from specmatrix.reports.history.store import LETTERS, PAGES, History
from specmatrix.reports.render.markup import html, script_json
from specmatrix.reports.schema import RED_STATES, Json
from specmatrix.reports.wording import count

if TYPE_CHECKING:
    import numpy as np

INDEX_FILE: Final = "index.html"
CELLS: Final = "cells"
# Maximum change points listed.
MAX_CHANGES: Final = 200


def write_site(history: History, out: Path, repository: str = "") -> Path:
    """Write the dashboard into the folder `out` and return the path of its first page. Raises ReportError.

    repository: address of the commits' repository, such as `https://github.com/owner/name`.
    """
    check_place(out, INDEX_FILE)
    with writes(out), held(out):
        pages = _copy_pages(history, out / PAGES)
        _write_cells(history, out / CELLS)
        write_text(out / INDEX_FILE, _page(history, pages, repository))
    return out / INDEX_FILE


def _page(history: History, pages: frozenset[int], repository: str) -> str:
    found, unstable = changes(history), flaky(history)
    return html(
        "site.html.j2",
        history=history,
        latest=list(_latest(history)),
        changes=[(change, change_text(history, change)) for change in found[:MAX_CHANGES]],
        left_out=max(0, len(found) - MAX_CHANGES),
        flaky=[(row, sentence(row)) for row in unstable],
        data={
            "repository": repository.rstrip("/"),
            "runs": _runs(history, pages),
            "cells": history.cells,
            "states": [row.tobytes().decode() for row in history.states],
            "letters": {letter: state for state, letter in LETTERS.items()},
            "flaky": sorted({row.cell for row in unstable}),
            "changes": [[change.cell, change.measure, change.after] for change in found],
            "measures": {name: _rounded(over_cells(values)) for name, values in history.measures.items()},
        },
    )


def _copy_pages(history: History, folder: Path) -> frozenset[int]:
    """Put the runs' pages into `folder`, as hard links where possible; returns the runs that have one."""
    folder.mkdir(exist_ok=True)
    there = frozenset(run for run in range(len(history.runs)) if history.page(run))
    for run in there:
        source = history.page(run)
        target = folder / f"{history.runs['run'][run]}.html"
        if source is not None and not target.exists():
            try:
                os.link(source, target)
            except OSError:
                with source.open("rb") as page, replaced(target) as copy:
                    shutil.copyfileobj(page, copy)
    return there


def _write_cells(history: History, folder: Path) -> None:
    """Write one script per cell, named by its index: a page opened from disk can load scripts but no other files."""
    folder.mkdir(exist_ok=True)
    red: dict[int, list[Json]] = {}
    for row in history.red:
        red.setdefault(row.cell, []).append([row.run, ", ".join(row.gates), row.message, row.waived])
    for cell in range(len(history.cells)):
        measured = {name: _rounded(values[:, cell]) for name, values in history.measures.items()}
        record = {"cell": cell, "measures": {k: v for k, v in measured.items() if v}, "red": red.get(cell, [])}
        with replaced(folder / f"{cell}.js") as script:
            script.write(f"specmatrixCell({script_json(record)});\n".encode(errors="replace"))
    # Left by an earlier, larger history.
    cell = len(history.cells)
    with suppress(FileNotFoundError):
        while True:
            (folder / f"{cell}.js").unlink()
            cell += 1


def _rounded(values: np.ndarray) -> list[float | None]:
    """Values at four significant digits, None where not measured; empty if nothing was."""
    rounded = [None if value != value else float(f"{value:.4g}") for value in values.tolist()]
    return rounded if any(value is not None for value in rounded) else []


def _runs(history: History, pages: frozenset[int]) -> list[list[Json]]:
    """Per run: name, time, commit, dirty flag, series, counts by letter, red, waived, has a page, version of a foreign
    engine."""
    waived = [0] * len(history.runs)
    for row in history.red:
        waived[row.run] += row.waived
    names = ("run", "created", "commit", "dirty", "subject", "tier", "stage", "seed")
    found = []
    for run, (name, created, commit, dirty, *line) in enumerate(
        zip(*(history.runs[name].tolist() for name in names), strict=True)
    ):
        counts = history.counts(run)
        red = sum(counts[state] for state in RED_STATES) - waived[run]
        passed, paged = counts["PASS"], run in pages
        series = " ".join(map(str, line))
        found.append([name, created, commit, dirty, series, passed, red, waived[run], paged, history.versions[run]])
    return found


def _latest(history: History) -> Iterator[tuple[str, str]]:
    """The newest run of each subject, tier and stage, with its verdict and one sentence."""
    newest = history.runs.drop_duplicates(["subject", "tier", "stage"], keep="last")
    waived = {(row.run, row.cell) for row in history.red if row.waived}
    for run, row in newest[::-1].iterrows():
        red = sorted({each.cell for each in history.red if each.run == run and (each.run, each.cell) not in waived})
        total = sum(history.counts(run).values())
        text = f"{row['subject']} {row['tier']} / {row['stage']} at {history.builds[run]}: "
        text += f"{count(len(red), 'red cell')} of {total:,}, {row['created'][:16].replace('T', ' ')}"
        yield "red" if red else "green", text


def change_text(history: History, change: ChangePoint) -> str:
    """`3.68 to 2.48 (-33 %) from 0123456789ab to 123456789abc`."""
    share = f"{100 * (change.ratio - 1):+.1f} %"
    unit = " s" if change.measure == "seconds" and change.cell != ALL_CELLS else ""
    levels = f"{change.old:.4g} to {change.new:.4g}{unit} ({share})"
    return f"{levels} between {history.builds[change.before]} and {history.builds[change.after]}"
