"""The folder of a history: `RUN.parquet` with a row per cell, and `pages/RUN.html`, the page of the run if it has one.

Any reader of Parquet can query it, for example DuckDB: `select * from 'history/*.parquet'`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specmatrix.errors import shown
from specmatrix.extras import require
from specmatrix.reports.atomic import check_place, replaced
from specmatrix.reports.lengths import positive
from specmatrix.reports.schema import (
    CRASH,
    GATE_STATES,
    PAGE_FILE,
    RED_STATES,
    REFERENCE,
    CellResult,
    CellState,
    Header,
    ReportError,
    is_waived,
)
from specmatrix.reports.store import Report, load
from specmatrix.reports.wording import failure, machine, shorten

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

SUFFIX: Final = ".parquet"
PAGES: Final = "pages"
# Tracked measures, each with its gate and number; seconds are the cell's own.
MEASURES: Final = {
    "acceptance": ("acceptance", "length"),
    "accuracy": ("accuracy", "accuracy"),
    "speed": ("speed", "tokens_per_second"),
    "seconds": ("", ""),
}
LETTERS: Final[dict[CellState, str]] = {"PASS": "P", "FAIL": "F", "NOT MEASURED": "N", "INFRA": "I", "UNSUPPORTED": "U"}
ABSENT: Final = "-"
RUN_COLUMNS: Final = (
    "run", "created", "commit", "dirty", "tier", "stage", "seed", "subject", "version", "machine", "inputs",
)  # fmt: skip
CELL_COLUMNS: Final = ("cell", "state", "red", "waived", "message", *MEASURES)
_MAX_MESSAGE: Final = 300


class RedCell(NamedTuple):
    """A red cell of a run, both as indices of the history. gates: the red ones, or `CRASH`."""

    run: int
    cell: int
    gates: tuple[str, ...]
    waived: bool
    message: str


@dataclass(frozen=True)
class History:
    """All runs in order of time, and what each says of each cell.

    runs: a row per run, `RUN_COLUMNS`. states: of shape (runs, cells), letters of `LETTERS` as bytes, `ABSENT` where a
    run has no such cell. measures: of the same shape, NaN where a run measured nothing.
    """

    folder: Path
    runs: DataFrame
    cells: tuple[str, ...]
    states: np.ndarray
    measures: dict[str, np.ndarray]
    red: tuple[RedCell, ...]

    def page(self, run: int) -> Path | None:
        """The page of a run, None if there was none."""
        path = self.folder / PAGES / f"{self.runs['run'][run]}.html"
        return path if path.is_file() else None

    @cached_property
    def builds(self) -> list[str]:
        """Each run's commit for display, after the version of a foreign engine."""
        rows = zip(self.versions, self.runs["commit"], self.runs["dirty"], strict=True)
        return [
            f"{version} at " * bool(version) + commit[:12] + " + changes" * bool(dirty)
            for version, commit, dirty in rows
        ]

    @cached_property
    def versions(self) -> list[str]:
        """Each run's version of its subject, "" for the reference engine, whose commit says it."""
        rows = zip(self.runs["subject"], self.runs["version"], strict=True)
        return ["" if subject == REFERENCE else version for subject, version in rows]

    def counts(self, run: int) -> dict[CellState, int]:
        """The cells of a run by state."""
        row = self.states[run].tobytes().decode()
        return {state: row.count(letter) for state, letter in LETTERS.items()}


def add(source: Path, folder: Path) -> tuple[str, bool]:
    """Add a report to the history; the name of its run, and whether it is new there.

    ReportError if it cannot be read, if it is one shard of a run or has a planted fault, or if `folder` cannot be
    written; ConfigError without pyarrow.
    """
    arrow = library("pyarrow.parquet")
    report = load(source)
    header = report.header
    if header.shard is not None:
        part = f"shard {header.shard.number}/{header.shard.count}"
        raise ReportError(f"{report.path} is {part} of a run; merge all shards first: specmatrix merge")
    if header.fault:
        raise ReportError(f"{report.path} is of the planted fault {header.fault}; a history holds runs without one")
    run = _name(header, report)
    target = folder / f"{run}{SUFFIX}"
    check_place(folder)
    if target.exists():
        return run, False
    table = library("pyarrow").Table.from_pandas(_frame(run, report), preserve_index=False)
    page = report.path.with_name(PAGE_FILE)
    if page.is_file():
        with page.open("rb") as whole, replaced(folder / PAGES / f"{run}.html") as copy:
            shutil.copyfileobj(whole, copy)
    with replaced(target) as file:
        arrow.write_table(table, file)
    return run, True


def read(folder: Path) -> History:
    """The history of a folder. ReportError if it has none or a file is damaged, ConfigError without pyarrow."""
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not files:
        raise ReportError(f"{folder} holds no run; add one: specmatrix history add OUT --history {folder}")
    arrow = library("pyarrow")
    parquet = library("pyarrow.parquet")
    tables: list[tuple[str, Any]] = []
    for file in files:
        try:
            table = parquet.ParquetFile(file, memory_map=True).read()
        except (OSError, arrow.ArrowException) as error:
            raise ReportError(f"{file} cannot be read: {shorten(str(error), 160)}") from error
        names = set(table.column_names)
        if missing := [name for name in (*RUN_COLUMNS, *CELL_COLUMNS) if name not in names]:
            raise ReportError(f"{file} has no column {missing[0]}; it was not written by specmatrix history add")
        if len(table):
            tables.append((file.stem, table))
    try:
        return _history(folder, tables)
    except (TypeError, ValueError, AttributeError, arrow.ArrowException) as error:
        raise ReportError(f"{folder} has a file with values of another type: {shorten(str(error), 160)}") from error


def library(name: str) -> Any:  # noqa: ANN401  # these modules have no types
    """A module of the extra `history`. ConfigError if it is missing."""
    require(name.partition(".")[0])
    return import_module(name)


def _name(header: Header, report: Report) -> str:
    when = datetime.fromisoformat(header.created).strftime("%Y%m%dT%H%M%S")
    digest = blake2b(report.path.read_bytes(), digest_size=4).hexdigest()
    # A header is untrusted, so no part of it may lead outside the folder.
    words = (re.sub(r"[^\w.+]", "_", word) for word in (header.tier, header.stage, header.commit[:12]))
    return "-".join((when, *words, digest))


def _frame(run: str, report: Report) -> DataFrame:
    """The rows of a run. What all rows share is stored as a dictionary and costs next to nothing."""
    import pandas as pd

    header = report.header
    inputs = (*header.versions.items(), header.data_hash, header.zoo_hash)
    shared = {
        "run": run, "created": header.created, "commit": header.commit, "dirty": header.dirty, "tier": header.tier,
        "stage": header.stage, "seed": header.seed, "subject": header.subject.name, "version": header.subject.version,
        "machine": machine(header), "inputs": blake2b(repr(inputs).encode(), digest_size=6).hexdigest(),
    }  # fmt: skip
    rows = [
        {"cell": cell.id, "state": cell.state, **_judged(cell, header.created), **_measured(cell)} for cell in report
    ]
    frame = pd.DataFrame(rows, columns=list(CELL_COLUMNS)).astype(dict.fromkeys(MEASURES, "float64"))
    for place, (name, value) in enumerate(shared.items()):
        frame.insert(place, name, value)
    return frame


def _judged(cell: CellResult, today: str) -> dict[str, Any]:
    """Whether and why a cell is red."""
    if cell.state not in RED_STATES:
        return {"red": "", "waived": False, "message": ""}
    gates = ", ".join(gate.name for gate in cell.gates if gate.state != "PASS") or CRASH
    return {"red": gates, "waived": is_waived(cell, today), "message": shorten(failure(cell), _MAX_MESSAGE)}


def _measured(cell: CellResult) -> dict[str, float | None]:
    found: dict[str, float | None] = {"seconds": positive(cell.seconds)}
    for name, (gate, number) in MEASURES.items():
        if gate and (result := cell.gate(gate)) is not None:
            found[name] = positive(result.numbers.get(number))
    return found


def _history(folder: Path, named: Sequence[tuple[str, Any]]) -> History:
    """The history from tables, each named by its file: the name within a table would be an untrusted path."""
    import numpy as np
    import pandas as pd

    heads = [
        {**{name: _line(table.column(name)[0].as_py()) for name in RUN_COLUMNS}, "run": run} for run, table in named
    ]
    if not heads:
        raise ReportError(f"{folder} holds only runs without a cell")
    moments = [datetime.fromisoformat(head["created"]) for head in heads]
    order = sorted(range(len(heads)), key=lambda row: (moments[row], heads[row]["run"]))
    runs = pd.DataFrame([heads[row] for row in order])
    tables = [named[row][1] for row in order]
    whole = library("pyarrow").concat_tables([table.select(CELL_COLUMNS) for table in tables]).combine_chunks()
    run_of = np.repeat(np.arange(len(tables)), [len(table) for table in tables])

    def codes(name: str) -> tuple[np.ndarray, list[str]]:
        encoded = whole.column(name).combine_chunks().dictionary_encode()
        return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()

    cell_of, cells = codes("cell")
    cells = [_line(cell) for cell in cells]
    shape = len(tables), len(cells)
    states = np.full(shape, ord(ABSENT), dtype=np.uint8)
    state_of, names = codes("state")
    letters = {str(state): letter for state, letter in LETTERS.items()}
    if unknown := next((name for name in names if name not in letters), None):
        raise ReportError(f"{folder} has a cell in the unknown state {shown(unknown)}")
    states[run_of, cell_of] = np.array([ord(letters[name]) for name in names], dtype=np.uint8)[state_of]
    measures = {name: np.full(shape, np.nan) for name in MEASURES}
    for name, values in measures.items():
        values[run_of, cell_of] = whole.column(name).to_numpy()
    waived = whole.column("waived").to_numpy()
    red, messages = whole.column("red"), whole.column("message")
    found = [
        RedCell(
            int(run_of[row]),
            int(cell_of[row]),
            tuple(_line(red[row].as_py()).split(", ")),
            bool(waived[row]),
            _line(messages[row].as_py()),
        )
        for row in np.flatnonzero(np.isin(states[run_of, cell_of], [ord(LETTERS[state]) for state in RED_STATES]))
    ]
    return History(folder, runs, tuple(cells), states, measures, tuple(found))


def _line(value: Any) -> Any:  # noqa: ANN401 - what a column holds
    """A text on one short line, as history files are untrusted."""
    return shorten(value, _MAX_MESSAGE) if isinstance(value, str) else value


# Number of newest runs used: older ones are of other code and machines.
NEWEST: Final = 10


def median_seconds(history: History, tier: str) -> dict[str, float]:
    """The median of each cell over the newest runs of a tier in which it was judged, by id. ReportError without such a
    run."""
    import numpy as np

    rows = np.flatnonzero(history.runs["tier"] == tier)[-NEWEST:]
    if not len(rows):
        raise ReportError(f"{history.folder} has no run of tier {tier}")
    judged = np.isin(history.states[rows], [ord(LETTERS[state]) for state in GATE_STATES])
    seconds = np.where(judged, history.measures["seconds"][rows], np.nan)
    known = np.flatnonzero(judged.any(axis=0) & ~np.isnan(seconds).all(axis=0))
    return {history.cells[cell]: float(np.nanmedian(seconds[:, cell])) for cell in known}
