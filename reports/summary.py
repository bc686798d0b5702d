"""The counts of a report, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from specmatrix.reports.atomic import write_text
from specmatrix.reports.counters import CounterVerdict, counters_of
from specmatrix.reports.covered import Coverage, covered
from specmatrix.reports.schema import (
    RED_STATES,
    SCHEMA,
    SUMMARY_FILE,
    CellResult,
    CellState,
    CheaperStage,
    GateState,
    Header,
    Json,
    is_waived,
)
from specmatrix.reports.sensitivity import UNITS, FalseAlarms, false_alarms, typical
from specmatrix.reports.store import Report
from specmatrix.reports.wording import count, duration

CPU_TIER: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Cost:
    """Core time and engine starts of a run's cells and their baselines, and the GPU time of the run, 0 if unknown.
    cheaper: None if no stage is cheaper, or if only part of a stage ran."""

    core_seconds: float
    gpu_seconds: float
    engine_starts: int
    cheaper: CheaperStage | None

    @property
    def message(self) -> str:
        """The cost in one sentence."""
        gpus = f", {duration(self.gpu_seconds)} of GPU time" if self.gpu_seconds else ""
        return f"cost: {duration(self.core_seconds)} of core time{gpus}, {count(self.engine_starts, 'engine start')}"

    @property
    def saving(self) -> str:
        """One sentence on the faults that the cheaper stage would have missed; "" without one."""
        less = self.cheaper
        if less is None:
            return ""
        stage = f"stage {less.stage} ({count(less.cells, 'cell')}, about {duration(less.seconds)} of core time)"
        faults = f"the {count(less.faults, 'fault')} that cells of this stage find"
        missed = less.faults - less.found
        if not missed:
            return f"{stage} is known to find all of {faults}"
        return f"{stage} has no cell that is known to find {missed:,} of {faults}"

    def to_json(self) -> dict[str, Json]:
        """The stable form for `summary.json`."""
        return {
            "core_seconds": round(self.core_seconds, 3),
            "gpu_seconds": round(self.gpu_seconds, 3),
            "engine_starts": self.engine_starts,
            "cheaper": None
            if self.cheaper is None
            else {name: getattr(self.cheaper, name) for name in CheaperStage.__struct_fields__},
        }


def cost_of(report: Report) -> Cost:
    """The cost of a report's cells: a cell holds a core for each of its ranks. Many of them share a GPU, which is held
    for the whole run."""
    held = [(cell.seconds * _ranks(cell), cell.engine_starts) for cell in report]
    seconds = sum(seconds for seconds, _ in held)
    return Cost(seconds, report.gpu_seconds or 0.0, sum(starts for _, starts in held), report.header.cheaper)


def _ranks(cell: CellResult) -> int:
    text = cell.axes.get("tp", "1")
    return int(text) if text.isdecimal() and 1 <= int(text) <= 1024 else 1


# Keys of summary.json for the states; part of its stable form.
STATE_KEYS: Final[dict[CellState, str]] = {
    "PASS": "pass", "FAIL": "fail", "NOT MEASURED": "not_measured", "INFRA": "infra",
    "UNSUPPORTED": "unsupported",
}  # fmt: skip


# The largest detectable share that is worth a sentence.
MIN_SEEN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over one report.

    `not_run`: selected cells that the run ended before. `seconds` is the sum over cells, in seconds of wall time.
    `waived` cells are red under a waiver that has not expired; `states` does not count them, but `by_gate` does, which
    has a row per gate that judged at least one cell. `counters`: combined counter coverage. `coverage`: the
    combinations of axis values that the cells cover. `cost`: of the run. `false_alarms`: probability that chance alone
    makes it red. `effects`: by gate, the median passing cell's minimum detectable effect, as a fraction.
    """

    header: Header
    cells: int
    not_run: int
    states: dict[CellState, int]
    waived: int
    seconds: float
    by_gate: dict[str, dict[GateState, int]]
    counters: CounterVerdict
    coverage: Coverage
    cost: Cost
    false_alarms: FalseAlarms
    effects: dict[str, float]

    @property
    def red(self) -> int:
        """Cells that fail the run."""
        return sum(self.states[state] for state in RED_STATES)

    @property
    def seen(self) -> list[str]:
        """The effect that a typical cell would have detected: `one wrong token in 1,800 (lossless)`."""
        return [
            f"one {UNITS[gate]} in {round(1 / share):,} ({gate})"
            for gate, share in self.effects.items()
            if gate in UNITS and 0 < share <= MIN_SEEN
        ]

    @property
    def ran(self) -> int:
        """Cells that the subject supports."""
        return self.cells - self.states["UNSUPPORTED"]

    def to_json(self) -> dict[str, Json]:
        """The stable form of `summary.json`."""
        return {
            "schema": SCHEMA,
            "cells": self.cells,
            **{key: self.states[state] for state, key in STATE_KEYS.items()},
            "waived": self.waived,
            "red": self.red,
            "not_run": self.not_run,
            "seconds": round(self.seconds, 3),
            "tier": self.header.tier,
            "stage": self.header.stage,
            "subject": self.header.subject.name,
            "by_gate": self.by_gate,
            "counters": asdict(self.counters),
            "coverage": asdict(self.coverage),
            "cost": self.cost.to_json(),
            "false_alarms": asdict(self.false_alarms),
            "smallest_effects": self.effects,
        }


def summarise(report: Report) -> Summary:
    """Count states, gates, waivers and seconds of a report; waivers are judged on the day of the run."""
    states: dict[CellState, int] = dict.fromkeys(STATE_KEYS, 0)
    gates: dict[str, Counter[GateState]] = {}
    waived = 0
    seconds = 0.0
    for cell in report:
        if cell.state in RED_STATES and is_waived(cell, report.header.created):
            waived += 1
        else:
            states[cell.state] += 1
        seconds += cell.seconds
        for gate in cell.gates:
            gates.setdefault(gate.name, Counter())[gate.state] += 1
    header = report.header
    by_gate = {name: dict(row) for name, row in gates.items()}
    counters, coverage, cost = counters_of(report), covered(report), cost_of(report)
    alarms = false_alarms({name: sum(row.values()) for name, row in by_gate.items()}, header)
    effects = typical([cell for cell in report if cell.state == "PASS"], header.thresholds)
    left = len(report.not_run)
    return Summary(
        header, len(report), left, states, waived, seconds, by_gate, counters, coverage, cost, alarms, effects
    )


def write_summary(summary: Summary, directory: Path) -> Path:
    """Write `directory/summary.json` whole or not at all; returns its path. Raises ReportError."""
    path = directory / SUMMARY_FILE
    write_text(path, json.dumps(summary.to_json(), indent=2) + "\n")
    return path
