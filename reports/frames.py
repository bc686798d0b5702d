"""Reports as pandas frames: `specmatrix.load`. pandas is imported when the first frame is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from specmatrix.extras import require
from specmatrix.reports.compare.rewrites import signature
from specmatrix.reports.schema import Json, ReportError
from specmatrix.reports.store import Report
from specmatrix.reports.store import load as load_report
from specmatrix.reports.wording import count, tested

if TYPE_CHECKING:
    from pandas import DataFrame

PathLike: TypeAlias = str | Path


class Runs:
    """What was loaded, as one frame per kind of record, each made when it is first taken. Column `run` is the path that
    a row comes from.

    reports: by path.
    """

    def __init__(self, reports: Mapping[str, Report]) -> None:
        self.reports: Final = reports

    def __repr__(self) -> str:
        lines = [
            f"{run}: {count(len(report), 'cell')}, {len(report.red()):,} red; {report.header.tier} / "
            f"{report.header.stage}, seed {report.header.seed}, {tested(report.header)}"
            for run, report in self.reports.items()
        ]
        frames = [name for name, value in vars(type(self)).items() if isinstance(value, cached_property)]
        return "\n".join([*lines, f"frames: {', '.join(frames)}"])

    @cached_property
    def headers(self) -> DataFrame:
        """One row per report: `run`, `created`, `commit`, `dirty`, `tier`, `stage`, `seed`, `cells`."""
        names = ("created", "commit", "dirty", "tier", "stage", "seed")
        return _frame(
            {"run": run} | {name: getattr(report.header, name) for name in names} | {"cells": len(report)}
            for run, report in self.reports.items()
        )

    @cached_property
    def cells(self) -> DataFrame:
        """One row per cell: `run`, `id`, `state`, `expect`, `start` (see `starts`), `seconds`, `error`, `waived` (the
        reason), `repro`; a column per axis with the value asked for, and `effective_<axis>` with the one that ran."""
        return _frame(
            {
                "run": run,
                **{name: getattr(cell, name) for name in ("id", "state", "expect")},
                "start": names[id(cell.start)],
                **{name: getattr(cell, name) for name in ("seconds", "error")},
                "waived": None if cell.waived is None else cell.waived.reason,
                "repro": cell.repro,
                **cell.axes,
                **{f"effective_{axis}": value for axis, value in _effective(report, cell.id).items()},
            }
            for run, report in self.reports.items()
            for names in [{id(start): start.digest for start in report.starts}]
            for cell in report
        )

    @cached_property
    def gates(self) -> DataFrame:
        """One row per cell and gate: `run`, `id`, `gate`, `verdict`, `message`, `low` and `high` (the interval), and a
        column per number that a gate recorded."""
        return _frame(
            {
                **gate.numbers,
                "run": run,
                "id": cell.id,
                "gate": gate.name,
                "verdict": gate.state,
                "message": gate.message,
                "low": None if gate.interval is None else gate.interval[0],
                "high": None if gate.interval is None else gate.interval[1],
            }
            for run, report in self.reports.items()
            for cell in report
            for gate in cell.gates
        ).pipe(_in_front, ("run", "id", "gate", "verdict", "message", "low", "high"))

    @cached_property
    def evidence(self) -> DataFrame:
        """One row per cell and counter above zero: `run`, `id`, `counter`, `count`."""
        return _frame(
            {"run": run, "id": cell.id, "counter": counter, "count": number}
            for run, report in self.reports.items()
            for cell in report
            for counter, number in cell.evidence.items()
        )

    @cached_property
    def starts(self) -> DataFrame:
        """One row per engine start: `run`, `start`, `cells` (how many ran on it), `resolved_hash`, `reasons` and
        `rewrites` (a list of texts each), a column per resolved value, and `requested_<field>` per requested one."""
        return _frame(
            {
                **(start.resolved or {}),
                "run": run,
                "start": start.digest,
                "cells": used[id(start)],
                "resolved_hash": start.resolved_hash,
                "reasons": [f"{row.field}={row.value}: {row.because}" for row in start.reasons],
                "rewrites": [signature(row) for row in start.rewrites],
                **{f"requested_{field}": value for field, value in start.requested.items()},
            }
            for run, report in self.reports.items()
            for used in [Counter(id(cell.start) for cell in report)]
            for start in report.starts
        ).pipe(_in_front, ("run", "start", "cells", "resolved_hash", "reasons", "rewrites"))


def load(*paths: PathLike | Iterable[PathLike]) -> Runs:
    """Reports: files, or directories of runs. Raises a one-sentence ReportError for anything else, a broken file, a
    path given twice, or no path."""
    flat = [each for path in paths for each in ([path] if isinstance(path, str | Path) else path)]
    if not flat or len(set(map(str, flat))) < len(flat):
        raise ReportError(f"got the paths {', '.join(map(str, flat)) or 'none'}; allowed are one or more, each once")
    return Runs({str(path): load_report(path) for path in map(Path, flat)})


def _effective(report: Report, cell: str) -> dict[str, str]:
    if report[cell].start.resolved is None:
        return {}
    values = report.values(cell)
    return {axis: values[axis] for axis in report[cell].axes}


def _frame(rows: Iterable[Mapping[str, Json]]) -> DataFrame:
    require("pandas")
    import pandas as pd

    return pd.DataFrame(list(rows))


def _in_front(frame: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The frame with these columns first, also where it has no row."""
    return frame.reindex(columns=[*names, *(name for name in frame.columns if name not in names)])
