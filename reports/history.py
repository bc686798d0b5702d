"""Many runs: a folder with a Parquet file per run and a row per cell, which any reader of Parquet can query.

pandas and pyarrow, of the extra `history`, are imported when they are used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specmatrix.extras import require
from specmatrix.reports import schema
from specmatrix.reports.lengths import positive
from specmatrix.reports.schema import CRASH, RED_STATES, REFERENCE, UNKNOWN, CellResult, ReportError, is_waived
from specmatrix.reports.store import Report, check_place, load, replaced
from specmatrix.reports.wording import count, failure, machine, shorten

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIX: Final = ".parquet"
# Measures with their gate and number; seconds are the cell's own.
MEASURES: Final = {
    "acceptance": ("acceptance", "length"),
    "accuracy": ("accuracy", "accuracy"),
    "speed": ("speed", "tokens_per_second"),
}
RUN_COLUMNS: Final = (
    "run", "created", "commit", "dirty", "tier", "stage", "seed", "subject", "version", "machine", "inputs",
)  # fmt: skip
CELL_COLUMNS: Final = ("cell", "state", "red", "waived", "message", *MEASURES, "seconds")
# Runs must give equal results if equal in all of these.
SAME: Final = ["commit", "tier", "seed", "subject", "version", "inputs"]
# The newest runs whose seconds count: older ones are of other code and machines.
NEWEST: Final = 10
_MAX_MESSAGE: Final = 300


class Flaky(NamedTuple):
    """A gate (`CRASH`: none, but the run) that is red for a cell in `red` of `runs` runs of `build`, the newest commit
    at which it flips, one of `commits`. first_red, first_green: names of runs that show it."""

    cell: str
    gate: str
    subject: str
    build: str
    red: int
    runs: int
    first_red: str
    first_green: str
    machines: int
    commits: int

    @property
    def sentence(self) -> str:
        """The behaviour in one sentence."""
        what = "crashes" if self.gate == CRASH else f"{self.gate} is red"
        where = f" on {self.machines} machines" if self.machines > 1 else ""
        more = f", and flips at {count(self.commits - 1, 'more commit')}" if self.commits > 1 else ""
        return f"{what} in {self.red} of {self.runs} runs of {self.build}{where}{more}"


def add(source: Path, folder: Path) -> tuple[str, bool]:
    """Add a report to the history; the name of its run, and whether it is new there.

    ReportError if it cannot be read, if it is one shard of a run or has a planted fault, or if `folder` cannot be
    written; ConfigError without pyarrow.
    """
    require("pyarrow")
    report = load(source)
    header = report.header
    if header.shard is not None:
        part = f"shard {header.shard.number}/{header.shard.count}"
        raise ReportError(f"{report.path} is {part} of a run; merge all shards first: specmatrix merge")
    if header.fault:
        raise ReportError(f"{report.path} is of the planted fault {header.fault}; a history holds runs without one")
    when = datetime.fromisoformat(header.created).strftime("%Y%m%dT%H%M%S")
    digest = blake2b(report.path.read_bytes(), digest_size=4).hexdigest()
    # A header is untrusted, so no part of it may lead outside the folder.
    words = (re.sub(r"[^\w.+]", "_", word) for word in (header.tier, header.stage, header.commit[:12]))
    run = "-".join((when, *words, digest))
    target = folder / f"{run}{SUFFIX}"
    check_place(folder)
    if target.exists():
        return run, False
    rows = _rows(run, report)
    with replaced(target) as file:
        rows.to_parquet(file, index=False)
    return run, True


def _rows(run: str, report: Report) -> DataFrame:
    """The rows of a run. What all rows share is stored as a dictionary and costs next to nothing."""
    import pandas as pd

    header = report.header
    inputs = (*header.versions.items(), header.data_hash, header.zoo_hash)
    shared = {
        "run": run, "created": header.created, "commit": header.commit, "dirty": header.dirty, "tier": header.tier,
        "stage": header.stage, "seed": header.seed, "subject": header.subject.name, "version": header.subject.version,
        "machine": machine(header), "inputs": blake2b(repr(inputs).encode(), digest_size=6).hexdigest(),
    }  # fmt: skip
    rows = [shared | _judged(cell, header.created) | _measured(cell) for cell in report]
    frame = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *CELL_COLUMNS])
    return frame.astype(dict.fromkeys((*MEASURES, "seconds"), "float64"))


def _judged(cell: CellResult, today: str) -> dict[str, Any]:
    """A cell's state, and whether and why it is red."""
    judged: dict[str, Any] = {"cell": cell.id, "state": cell.state, "red": "", "waived": False, "message": ""}
    if cell.state in RED_STATES:
        gates = ", ".join(gate.name for gate in cell.gates if gate.state != "PASS") or CRASH
        judged |= {"red": gates, "waived": is_waived(cell, today), "message": shorten(failure(cell), _MAX_MESSAGE)}
    return judged


def _measured(cell: CellResult) -> dict[str, float | None]:
    found: dict[str, float | None] = {"seconds": positive(cell.seconds)}
    for name, (gate, number) in MEASURES.items():
        if (result := cell.gate(gate)) is not None:
            found[name] = positive(result.numbers.get(number))
    return found


def read(folder: Path) -> DataFrame:
    """All rows of a folder, the oldest run first. ReportError if it has none or a file is damaged, ConfigError without
    pyarrow."""
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not files:
        raise ReportError(f"{folder} holds no run; add one: specmatrix history add OUT --history {folder}")
    require("pyarrow")
    import pandas as pd
    from pyarrow import ArrowException

    tables = []
    for file in files:
        try:
            table = pd.read_parquet(file)
            if missing := [name for name in (*RUN_COLUMNS, *CELL_COLUMNS) if name not in table.columns]:
                raise ReportError(f"{file} has no column {missing[0]}; it was not written by specmatrix history add")
            # The name within a table is untrusted.
            tables.append(
                table.assign(
                    run=file.stem,
                    time=pd.to_datetime(table["created"], utc=True, format="ISO8601"),
                    dirty=table["dirty"].astype(bool),
                    red=table["red"].astype(str),
                    seconds=table["seconds"].astype(float),
                )
            )
        except (OSError, TypeError, ValueError, ArrowException) as error:
            raise ReportError(f"{file} cannot be read: {shorten(str(error), 160)}") from error
    return pd.concat(tables).sort_values(["time", "run"], kind="stable", ignore_index=True)


def flaky(rows: DataFrame) -> list[Flaky]:
    """Cells that are red in one run and green in another of the same code on the same inputs, with their gates, by
    cell. Runs of a checkout with changes or of an unknown commit do not count."""
    judged = rows[~rows["dirty"] & (rows["commit"] != UNKNOWN) & (rows["state"] != "UNSUPPORTED")]
    judged = judged.assign(passed=judged["state"] == "PASS")
    flips = judged[judged.groupby([*SAME, "cell"])["passed"].transform("nunique") == 2]
    found: dict[tuple[str, str, str], list[Flaky]] = defaultdict(list)
    for runs in sorted((runs for _, runs in flips.groupby([*SAME, "cell"])), key=lambda runs: runs.index[-1]):
        latest = runs.iloc[-1]
        cell, subject, version, commit = (_line(latest[name]) for name in ("cell", "subject", "version", "commit"))
        build = ("" if subject == REFERENCE else f"{version} at ") + commit[:12]
        green, machines = runs["run"][runs["passed"]].iloc[0], runs["machine"].nunique()
        failed = runs[~runs["passed"]]
        for name, red in failed.assign(gate=failed["red"].str.split(", ")).explode("gate").groupby("gate"):
            gate, first = _line(name), red["run"].iloc[0]
            row = Flaky(cell, gate, subject, build, len(red), len(runs), first, green, machines, 0)
            found[cell, gate, subject].append(row)
    return [several[-1]._replace(commits=len(several)) for _, several in sorted(found.items())]


def median_seconds(folder: Path, tier: str) -> dict[str, float]:
    """The median of each cell over the newest runs of a tier in which it was judged, by id. ReportError without such a
    run."""
    rows = read(folder)
    mine = rows[rows["tier"] == tier]
    if mine.empty:
        raise ReportError(f"{folder} has no run of tier {tier}")
    newest = mine[mine["run"].isin(mine["run"].unique()[-NEWEST:]) & mine["state"].isin(schema.GATE_STATES)]
    medians: dict[str, float] = newest.groupby("cell")["seconds"].median().dropna().to_dict()
    return medians


def _line(value: object) -> str:
    """A text on one short line, as history files are untrusted."""
    return shorten(str(value), _MAX_MESSAGE)
