"""The counts of a report, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec import structs

from specmatrix.reports import schema
from specmatrix.reports.effective import Value
from specmatrix.reports.schema import RED_STATES, CellResult, CellState, GateState, Header, Json
from specmatrix.reports.store import Report, write_text
from specmatrix.reports.wording import count, duration


def holders(cells: Sequence[Mapping[str, str]]) -> dict[Value, int]:
    """(axis, value) -> bit mask of the cells that have it, in order of first occurrence."""
    width = len(cells) // 8 + 1
    rows: dict[Value, bytearray] = {}
    for index, values in enumerate(cells):
        place, bit = index >> 3, 1 << (index & 7)
        for item in values.items():
            row = rows.get(item)
            if row is None:
                row = rows[item] = bytearray(width)
            row[place] |= bit
    return {item: int.from_bytes(row, "little") for item, row in rows.items()}


@dataclass(frozen=True, slots=True)
class CounterVerdict:
    """Counter coverage of a run: `unhit` counters were required, `broken` ones must stay at zero and were hit.

    `message` is one sentence, whatever the state.
    """

    state: Literal["PASS", "FAIL", "NOT JUDGED"]
    message: str
    unhit: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterChange:
    """Counters that some cell of one report hits and no cell of the other."""

    lost: tuple[str, ...]
    gained: tuple[str, ...]

    def sentences(self) -> tuple[str, ...]:
        """One sentence for each direction that has counters."""
        rows = (("no longer", self.lost), ("newly", self.gained))
        return tuple(f"{count(len(names), 'counter')} {word} hit: {', '.join(names)}" for word, names in rows if names)


def judge_counters(
    demand: schema.CounterDemand | None, stage: str, cells: int, hits: Mapping[str, int]
) -> CounterVerdict:
    """Check a run of `cells` supported cells by the sum of their counters; runs with fewer cells than `demand` requires
    are not checked."""
    if demand is None:
        only = "counter coverage is checked in nightly runs only"
        return CounterVerdict("NOT JUDGED", "this tier checks no counter coverage" if stage == "nightly" else only)
    if cells < demand.cells:
        return CounterVerdict(
            "NOT JUDGED", f"counter coverage is not checked: only {cells:,} of the stage's {demand.cells:,} cells ran"
        )
    unhit = tuple(name for name in demand.hit if not hits.get(name, 0))
    broken = tuple(name for name in demand.zero if hits.get(name, 0))
    words = [f"no cell hit {count(len(unhit), 'required counter')}: {', '.join(unhit)}"] if unhit else []
    words += [f"counter {one} must stay at zero but was hit {hits[one]:,} times: {demand.zero[one]}" for one in broken]
    if words:
        return CounterVerdict("FAIL", "; ".join(words), unhit, broken)
    zero = f"{len(demand.zero)} at zero as required"
    return CounterVerdict("PASS", f"all {count(len(demand.hit), 'required counter')} hit, {zero}")


def counters_of(report: Report) -> CounterVerdict:
    """The verdict on a report's counters."""
    ran = sum(cell.state != "UNSUPPORTED" for cell in report.lines.values())
    return judge_counters(report.header.counters, report.header.stage, ran, report.evidence)


def worse_counters(base: Report, head: Report) -> tuple[str, ...]:
    """Reasons for which the counters make a comparison red: one in head's demand turned wrong, or coverage that base
    met is not judged in head, although both ran the same stage and tier."""
    old, new = counters_of(base), counters_of(head)
    if {*new.unhit, *new.broken} - {*old.unhit, *old.broken}:
        return (new.message,)
    alike = all(getattr(base.header, name) == getattr(head.header, name) for name in ("stage", "tier"))
    if old.state == "PASS" and new.state == "NOT JUDGED" and alike:
        return (f"base meets its counter coverage, and in head {new.message}",)
    return ()


def compare_counters(base: Mapping[str, int], head: Mapping[str, int]) -> CounterChange:
    """Counters that head gained and lost, by name."""
    old, new = ({name for name, hits in side.items() if hits} for side in (base, head))
    return CounterChange(tuple(sorted(old - new)), tuple(sorted(new - old)))


CPU_TIER: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Cost:
    """Core time and engine starts of a run's cells and their baselines, and the GPU time of the run, 0 if unknown.
    cheaper: None if no stage is cheaper, or if only part of a stage ran."""

    core_seconds: float
    gpu_seconds: float
    engine_starts: int
    cheaper: schema.CheaperStage | None

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
            "cheaper": None if self.cheaper is None else structs.asdict(self.cheaper),
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


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over one report.

    `not_run`: selected cells that the run ended before. `seconds` is the sum over cells, in seconds of wall time.
    `waived` cells are red under a waiver that has not expired; `states` does not count them, but `by_gate` does, which
    has a row per gate that judged at least one cell. `counters`: combined counter coverage. `cost`: of the run.
    """

    header: Header
    cells: int
    not_run: int
    states: dict[CellState, int]
    waived: int
    seconds: float
    by_gate: dict[str, dict[GateState, int]]
    counters: CounterVerdict
    cost: Cost

    @property
    def red(self) -> int:
        """Cells that fail the run."""
        return sum(self.states[state] for state in RED_STATES)

    @property
    def ran(self) -> int:
        """Cells that the subject supports."""
        return self.cells - self.states["UNSUPPORTED"]

    def to_json(self) -> dict[str, Json]:
        """The stable form of `summary.json`."""
        return {
            "schema": schema.SCHEMA,
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
            "cost": self.cost.to_json(),
        }


def summarise(report: Report) -> Summary:
    """Count states, gates, waivers and seconds of a report; waivers are judged on the day of the run."""
    states: dict[CellState, int] = dict.fromkeys(STATE_KEYS, 0)
    gates: dict[str, Counter[GateState]] = {}
    waived = 0
    seconds = 0.0
    for cell in report:
        if cell.state in RED_STATES and schema.is_waived(cell, report.header.created):
            waived += 1
        else:
            states[cell.state] += 1
        seconds += cell.seconds
        for gate in cell.gates:
            gates.setdefault(gate.name, Counter())[gate.state] += 1
    header = report.header
    by_gate = {name: dict(row) for name, row in gates.items()}
    counters, cost = counters_of(report), cost_of(report)
    cells, left = len(report), len(report.not_run)
    return Summary(header, cells, left, states, waived, seconds, by_gate, counters, cost)


def write_summary(summary: Summary, directory: Path) -> Path:
    """Write `directory/summary.json` whole or not at all; returns its path. Raises ReportError."""
    path = directory / schema.SUMMARY_FILE
    write_text(path, json.dumps(summary.to_json(), indent=2) + "\n")
    return path
