"""Whether the stage `speed` and its comparison see a round that takes 5 % longer, and nothing where nothing changed.

One cell is run again and again: a base, repetitions without a fault, and each planted delay. Every other run is
compared with the base.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from typing import Final

from specmatrix.benchmarks.metric import Metric, red
from specmatrix.ci.cell_runs import cell_runs
from specmatrix.ci.local import run_plan
from specmatrix.ci.planner import Host, plan
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.timed import TIMED
from specmatrix.matrix.faults.loader import delays
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.tiers import TIERS, visible_gpus
from specmatrix.matrix.run.tiers import tier as find_tier
from specmatrix.reports.compare.cell_state import CellChange, ChangeState
from specmatrix.reports.compare.cells import effect_text
from specmatrix.reports.compare.compare import compare
from specmatrix.reports.gate_numbers import SPEED
from specmatrix.reports.schema import CellResult
from specmatrix.reports.speed import by_start, levels
from specmatrix.reports.store import ReportWriter, load

CELL: Final = Cell.from_id("eagle3.s3.v1")
REPETITIONS: Final = 10
CPU, GPU = TIERS[0].name, TIERS[1].name


def measure(starts: int | None = None) -> list[Metric]:
    """A figure for each repetition and each delay, with its verdict as the note, how many verdicts are wrong, and the
    spread between the engine starts of one run.

    Runs on a GPU if there is one. starts: of each run, None for the usual number.
    """
    import torch

    tier = GPU if torch.cuda.is_available() else CPU
    share, rest = divmod(REPETITIONS, len(delays()))
    (base,) = runs(tier, 1, starts)
    repeated: list[Metric] = []
    delayed: list[Metric] = []
    equal = [base]
    for place, delay in enumerate(delays()):
        (late,) = runs(tier, 1, starts, delay.id)
        delayed.append(figure(delay.id.replace("-", "_"), base, late, tier))
        for record in runs(tier, share + (place < rest), starts):
            repeated.append(figure(f"repetition_{len(repeated) + 1}", base, record, tier))
            equal.append(record)
    verdicts = [wrong("repetitions_worse", repeated), wrong("delays_missed", delayed, due=True)]
    return [*repeated, *delayed, *verdicts, spread(equal)]


def runs(tier: str, times: int, starts: int | None, fault: str | None = None) -> Iterator[CellResult]:
    """The records of the cell, run several times by a worker that imports the planted fault."""
    gpus = find_tier(tier).gpus
    with cell_runs(tier, TIMED, 0, 1, fault=fault, starts=starts) as cells:
        work = plan([CELL], {}, [Host("local", gpus=min(gpus, visible_gpus(tier)))], gpus)
        for shard in work.shards:
            shard.groups[:] = [replace(group, cells=group.cells * times) for group in shard.groups]
        yield from run_plan(work, cells.job)


def figure(name: str, base: CellResult, head: CellResult, tier: str) -> Metric:
    """The change of the cell's own speed, which every delay moves, and the verdict of the comparison, which is also
    printed at once."""
    if head.state != "PASS" or base.state != "PASS":
        broken = head if head.state != "PASS" else base
        return red(name, None, f"{broken.state}: {broken.error or [g.message for g in broken.gates if g.message]}")
    change = compared(base, head, tier)
    own = next(effect for effect in change.effects if effect.gate == "own_speed")
    gate = head.gate(SPEED)
    assert gate is not None, "a cell that passed has its speed"
    low, high = (None, None) if own.interval is None else (1 + end for end in own.interval)
    note = f"{change.state}: " + "; ".join(effect_text(effect) for effect in change.effects)
    print(f"{name} {note}", file=sys.stderr, flush=True)
    return Metric(name, 1 + own.change, low, high, None, int(gate.numbers["starts"]), note=note)


def compared(base: CellResult, head: CellResult, tier: str) -> CellChange:
    """The change of the cell from one run to another."""
    header = run_header(tier, TIMED, 0, GATES)
    with TemporaryDirectory() as folder:
        sides = []
        for side, record in (("base", base), ("head", head)):
            with ReportWriter(Path(folder) / side, header) as writer:
                writer.write(record)
            sides.append(load(Path(folder) / side))
        (change,) = compare(*sides).changes
    return change


def wrong(name: str, found: list[Metric], due: bool = False) -> Metric:
    """How many figures are REGRESSED, or with `due` are not; red if one of the runs is."""
    if any(metric.red for metric in found):
        return red(name, 0.0, "a run is red")
    verdicts = [metric.note.startswith(ChangeState.REGRESSED) for metric in found]
    count = sum(verdict != due for verdict in verdicts)
    return Metric(name, float(count), None, None, 0.0, len(found), "lower")


def spread(equal: Sequence[CellResult]) -> Metric:
    """The standard deviation of the speed over no drafter between the engine starts of one run, over all runs."""
    gates = [gate for record in equal if (gate := record.gate(SPEED)) is not None]
    within = [variance(values) for gate in gates if len(values := levels(by_start(gate.numbers, SPEED))) > 1]
    name = "spread_of_starts"
    return Metric(name, sqrt(fmean(within)), None, None, None, len(within)) if within else red(name, None, "no starts")
