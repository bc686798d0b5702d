"""The kill matrix: which gate detects which fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from specmatrix.child_process import CRASHES
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.faults.fault import Fault
from specmatrix.matrix.faults.kernels import DETECTOR as KERNELS
from specmatrix.matrix.faults.plant import CellVerdict, Processes, Trial, trial
from specmatrix.matrix.gates.registry import own_names
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.schema import GATES, REFERENCE
from specmatrix.reports.speed import SPEED

RED: Final = ("FAIL", "NOT MEASURED")
CRASHED: Final = tuple(f"exit status {status:d}:" for status in CRASHES)
# Detectors of faults: the gates of cells and the laws of kernels. Lost speed shows in a comparison only.
DETECTORS: Final = (*(gate for gate in GATES if gate != SPEED), KERNELS)


class TrialJob(NamedTuple):
    """One process: a fault or none, and the cells and operations to check with it; first: up to the first red cell.
    subject: the engine that the cells run on."""

    fault: Fault | None
    cells: tuple[Cell, ...]
    operations: tuple[str, ...] = ()
    first: bool = False
    subject: str = REFERENCE


@dataclass(frozen=True, slots=True)
class Kill:
    """The outcome for one fault. killed_by: detectors that fail with the fault and pass without, as in DETECTORS.

    crashed: the first crash with the fault, None if every cell completed. cells: the red ones, in the order in which
    they ran. infra: whether some cell was INFRA, or the trial's process died without a crash.
    """

    fault: Fault
    killed_by: tuple[str, ...]
    crashed: str | None
    messages: dict[str, str]
    seconds: float
    cells: tuple[str, ...] = ()
    infra: bool = False

    @property
    def state(self) -> Literal["killed", "INFRA", "crashed", "survived"]:
        """`INFRA` and `crashed`, where the engine found the defect itself, are red without the verdict of a gate."""
        if self.killed_by:
            return "killed"
        return "INFRA" if self.infra else "crashed" if self.crashed else "survived"

    @property
    def killed(self) -> bool:
        return bool(self.killed_by)

    @property
    def unexpected(self) -> bool:
        """Whether it was killed, but by none of the expected gates."""
        return self.killed and not set(self.killed_by) & set(self.fault.expected)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One Kill per fault; `unfaulted_red`: failures and crashes without any fault; `missing`: ids of faults that have
    not run yet; `seconds`: of each cell without any fault."""

    kills: tuple[Kill, ...]
    unfaulted_red: tuple[str, ...]
    missing: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def states(self) -> Counter[str]:
        """How many faults there are in each state."""
        return Counter(kill.state for kill in self.kills)

    @property
    def sole(self) -> dict[str, tuple[str, ...]]:
        """Detector to the faults that it alone kills."""
        gates = (*DETECTORS, *own_names())
        return {gate: tuple(k.fault.id for k in self.kills if k.killed_by == (gate,)) for gate in gates}

    @property
    def ok(self) -> bool:
        return self.states["killed"] == len(self.kills) and not self.unfaulted_red and not self.missing

    def as_dict(self) -> dict[str, Any]:
        """The stable machine-readable form; an incomplete matrix lists the missing faults."""
        missing = {"missing": list(self.missing)} if self.missing else {}
        return missing | {
            "total": len(self.kills),
            "killed": self.states["killed"],
            "faults": [
                {
                    "id": kill.fault.id,
                    "category": kill.fault.category,
                    "origin": kill.fault.origin,
                    "killed_by": list(kill.killed_by),
                    "state": kill.state,
                    "crashed": kill.crashed is not None,
                    "cells": list(kill.cells),
                }
                for kill in self.kills
            ],
            "cell_seconds": {cell: round(seconds, 3) for cell, seconds in self.seconds.items()},
        }


def kill_matrix(
    faults: Sequence[Fault],
    locked: Sequence[Cell],
    seed: int = 0,
    workers: int = 2,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[Matrix], None] = lambda matrix: None,
    tier: str = "cpu",
    first: int | None = None,
) -> Matrix:
    """Run every fault's cells, once without any fault and once with it, `workers` processes at a time.

    first: run at most this many of the `locked` cells in front of a fault's own, and stop at the first red one.
    progress: called with the name of each trial as it ends. keep: called with the matrix so far, after each fault, once
    all trials without a fault have ended. ConfigError if a fault does not apply or matches no cell, or if a zoo
    checkpoint is damaged.
    """
    gpu = find_tier(tier).gpus > 0
    chosen = {fault.id: [] if fault.operations and not gpu else fault.chosen(locked) for fault in faults}
    by_subject: dict[str, list[Cell]] = {}
    for one in faults:
        if first is not None and one.subject == REFERENCE and chosen[one.id]:
            chosen[one.id] = [*dict.fromkeys((*locked[:first], *chosen[one.id]))]
        by_subject.setdefault(one.subject, []).extend(chosen[one.id])
    verify_cells(order(cell for cells in by_subject.values() for cell in cells))
    plain: list[Trial] = []
    found: dict[str, Trial] = {}
    parts = [
        TrialJob(None, tuple(part), subject=subject)
        for subject, cells in by_subject.items()
        for part in shares(order(cells), workers if subject == REFERENCE else 1)
    ]
    if operations := tuple(sorted({name for fault in faults for name in fault.operations})):
        parts.append(TrialJob(None, (), operations))
    run_order = chosen if first is not None else {name: order(cells) for name, cells in chosen.items()}
    of_faults = (
        TrialJob(fault, tuple(run_order[fault.id]), fault.operations, first is not None, fault.subject)
        for fault in faults
    )
    jobs = [*parts, *of_faults]
    for fault, result in _run(jobs, seed, workers, tier):
        if fault is None:
            plain.append(result)
        else:
            found[fault.id] = result
        progress("no fault" if fault is None else fault.id)
        if len(plain) == len(parts):
            keep(_matrix(faults, found, plain))
    return _matrix(faults, found, plain)


def _matrix(faults: Sequence[Fault], found: Mapping[str, Trial], plain: Sequence[Trial]) -> Matrix:
    """The matrix of the trials in `found`, compared with the trials without a fault."""
    passed = _passed(plain)
    kills = tuple(kill_of(fault, found[fault.id], passed) for fault in faults if fault.id in found)
    seconds = {verdict.cell: verdict.seconds for result in plain for verdict in result.verdicts}
    return Matrix(kills, _reds(plain), tuple(fault.id for fault in faults if fault.id not in found), seconds)


def shares(cells: Sequence[Cell], count: int) -> list[list[Cell]]:
    """Split cells into at most `count` parts of similar run time; cells of one engine start stay together."""
    starts: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        starts.setdefault(cell.start_key, []).append(cell)
    parts: list[list[Cell]] = [[] for _ in range(count)]
    for group in sorted(starts.values(), key=lambda group: -sum(cell.seconds for cell in group)):
        min(parts, key=lambda part: sum(cell.seconds for cell in part)).extend(group)
    return [part for part in parts if part]


def kill_of(fault: Fault, result: Trial, passed: dict[tuple[str, str], bool]) -> Kill:
    """A detector kills a fault if it fails with the fault and passes without. A crash kills nothing."""
    messages: dict[str, str] = {}
    red: dict[str, None] = {}
    crashed, infra = result.died, result.died is not None and not result.died.startswith(CRASHED)
    for verdict in result.verdicts:
        crashed = crashed or verdict.error
        if verdict.error:
            red[verdict.cell] = None
            infra = infra or verdict.record is None or verdict.record.state == "INFRA"
        for gate, (state, message) in verdict.gates.items():
            if state in RED and passed.get((verdict.cell, gate)):
                messages.setdefault(gate, f"{verdict.cell}: {message}")
                red[verdict.cell] = None
    killed_by = tuple(detector for detector in (*DETECTORS, *own_names()) if detector in messages)
    return Kill(fault, killed_by, crashed, messages, sum(one.seconds for one in result.verdicts), tuple(red), infra)


def _run(jobs: Sequence[TrialJob], seed: int, workers: int, tier: str) -> Iterator[tuple[Fault | None, Trial]]:
    """Yield trials as they end. Threads only wait for their processes, which are killed if the caller stops early."""
    processes = Processes()
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_trial, job, seed, processes, tier): job.fault for job in jobs}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()


def _trial(job: TrialJob, seed: int, processes: Processes, tier: str) -> Trial:
    patch = None if job.fault is None else job.fault.patch
    return trial(
        patch, job.cells, seed, processes=processes, tier=tier, operations=job.operations, first=job.first,
        subject=job.subject,
    )  # fmt: skip


def _passed(plain: Sequence[Trial]) -> dict[tuple[str, str], bool]:
    return {
        (verdict.cell, gate): state == "PASS"
        for result in plain
        for verdict in result.verdicts
        for gate, (state, _) in verdict.gates.items()
    }


def _reds(plain: Sequence[Trial]) -> tuple[str, ...]:
    """A sentence for each failure or crash without any fault."""
    found = [result.died for result in plain if result.died]
    for verdict in (verdict for result in plain for verdict in result.verdicts):
        found += [f"{verdict.cell}: {verdict.error}"] if verdict.error else _red_gates(verdict)
    return tuple(found)


def _red_gates(verdict: CellVerdict) -> list[str]:
    return [
        f"{verdict.cell}: {gate} is {state}: {message}"
        for gate, (state, message) in verdict.gates.items()
        if state in RED
    ]
