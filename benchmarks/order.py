"""When a run's first red cell comes, with the stored order of cells and without it.

Estimated for every fault that a cell of the order is known to find: the plan of the stage for two workers, with the
measured seconds of the cells in front of the first that finds the fault. Cells that the order does not name have their
estimate, scaled as the measured ones are to theirs. Other cells may find a fault earlier, so that both are bounds from
above. `--measure N` plants N sampled faults and runs the stage until its first red cell, both ways. `--mutants N`
plants N mutants of a seed that the order does not know, of which those count that some cell kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from statistics import median
from typing import Final, NamedTuple

from specmatrix.benchmarks.metric import Metric, of, red, unmeasured
from specmatrix.ci.planner import Host, plan
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.order import ORDER_FILE, OrderedCell, stored_order
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.mutants import PATHS, equivalents, is_equivalent, sample_of
from specmatrix.matrix.faults.plant import Plantable, environment, planted
from specmatrix.reports.schema import REPORT_FILE

STAGE: Final = "pr"
WORKERS: Final = 2
SOON: Final = 15.0  # seconds
SHARE: Final = 0.9
MEDIAN: Final = 6.0  # seconds
# What a run takes besides its cells: the start of both workers (1.6 s), and what their first cells load.
BEGIN: Final = 3.6
SEED: Final = 0
MUTANT_SHARE: Final = 0.8
MUTANT_SEED: Final = 3
LIMIT: Final = 300.0
# Runs at the same time, each with as many idle cores as workers.
AT_ONCE: Final = max(1, (os.cpu_count() or 1) // (2 * WORKERS))


def measure(sample: int = 0, mutants: int = 0) -> list[Metric]:
    """Share of faults found within SOON, and median seconds; both with and without the order.

    sample: number of faults to plant; mutants: of mutants. ConfigError on a negative number, or if there are fewer.
    """
    order = stored_order()
    faults = sorted({fault for row in order for fault in row.faults})
    if not faults:
        return [unmeasured("first_red_within_15_s", SHARE, "no order is stored; see `specmatrix lock --order`")]
    cpu = [fault.id for fault in select(()) if fault.cells]
    if not 0 <= sample <= len(cpu):
        raise ConfigError(f"--measure must be between 0 and {len(cpu)}, the faults that cells find, got {sample}")
    if mutants < 0:
        raise ConfigError(f"--mutants must be at least 0, got {mutants}")
    ranked = {row.cell: place for place, row in enumerate(order)}
    found = []
    for word, ranks in (("", ranked), ("_unordered", {})):
        times = list(first_reds(order, ranks).values())
        note = f"estimate for {len(cpu)} faults; a cell of the order and the stage is known to find {len(times)}"
        times += [inf] * (len(cpu) - len(times))
        goals = (SHARE, MEDIAN) if not word else (None, None)
        found += _metrics(f"first_red{word}", times, *goals, note)
    found += measured_faults(random.Random(SEED).sample(cpu, sample)) if sample else []
    return found + (measured_mutants(mutants) if mutants else [])


def first_reds(order: Sequence[OrderedCell], ranks: Mapping[str, int]) -> dict[str, float]:
    """Fault to the seconds until the first cell that is known to find it has ended, in the plan by `ranks`."""
    cells = of_gpus(stage_cells(STAGE), 0)
    known = {row.cell: row for row in order}
    measured = [cell for cell in cells if cell.id in known]
    estimated = sum(cell.seconds for cell in measured)
    pace = sum(known[cell.id].seconds for cell in measured) / estimated if estimated else 1.0
    found: dict[str, float] = {}
    for shard in plan(cells, {}, [Host("local", workers=WORKERS)], ranks=ranks).shards:
        now = BEGIN
        for cell in (cell for group in shard.groups for cell in group.cells):
            row = known.get(cell.id)
            now += cell.seconds * pace if row is None else row.seconds
            for fault in () if row is None else row.faults:
                found[fault] = min(now, found.get(fault, now))
    return found


class FirstRed(NamedTuple):
    """A run that ended at its first red cell. seconds: at most LIMIT for one that hangs, infinite if no cell is red.
    error: the end of its output if it left no report, else ""."""

    seconds: float
    error: str = ""


def measured_faults(names: Sequence[str]) -> list[Metric]:
    """The same, of runs with faults, with the stored order and without it; a run without a red cell takes for ever."""
    found = []
    for word, ordered in (("", True), ("_unordered", False)):
        name, runs = f"first_red_measured{word}", measured({one.id: one.patch for one in select(names)}, ordered)
        for fault, run in runs.items():
            if run.error:
                return [red(name, None, f"the run with {fault} left no report: {run.error}")]
        each = ", ".join(f"{fault} {run.seconds:.1f} s" for fault, run in runs.items())
        times = [run.seconds for run in runs.values()]
        found += _metrics(name, times, None, None, f"runs with faults sampled with seed {SEED}: {each}")
    return found


def measured_mutants(size: int) -> list[Metric]:
    """The same, of the mutants that turn some cell of the stage red, or that break the command itself."""
    marked = equivalents()
    mutants = [one for one in sample_of(PATHS, size, MUTANT_SEED)[0] if not is_equivalent(one, marked)]
    runs = {name: run for name, run in measured({one.id: one for one in mutants}).items() if run.seconds < inf}
    name = "first_red_mutants"
    if not runs:
        return [unmeasured(f"{name}_within_15_s", MUTANT_SHARE, f"no cell kills any of {len(mutants)} mutants")]
    late = ", ".join(f"{mutant} {run.seconds:.1f} s" for mutant, run in runs.items() if run.seconds > SOON)
    note = f"{len(runs)} of {len(mutants)} mutants of seed {MUTANT_SEED} are killed, late: {late or 'none'}"
    broken = sum(bool(run.error) for run in runs.values())
    note += f"; {broken} broke the command itself" * bool(broken)
    return _metrics(name, [run.seconds for run in runs.values()], MUTANT_SHARE, None, note)


def measured(changes: Mapping[str, Plantable], ordered: bool = True) -> dict[str, FirstRed]:
    """A run of the stage with each change, AT_ONCE at a time. Each is printed on stderr as it ends: an interrupt loses
    none."""

    def told(name: str) -> FirstRed:
        run = first_red(changes[name], ordered)
        says = f"broken after {run.seconds:.1f} s" if run.error else f"red after {run.seconds:.1f} s"
        print(f"{name}: {says if run.seconds < inf else 'no cell is red'}", file=sys.stderr, flush=True)
        return run

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(changes, pool.map(told, changes), strict=True))


def first_red(change: Plantable, ordered: bool = True) -> FirstRed:
    """A run of the stage with a change, in the stored order or without one."""
    with planted(change) as tree:
        if not ordered:
            (tree / "matrix" / "cover" / ORDER_FILE.name).unlink()
        words = ["run", "--stage", STAGE, "--fail-fast", "--workers", str(WORKERS), "--out", str(tree / "out")]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "specmatrix", *words], cwd=tree, env=environment(tree), capture_output=True,
                encoding="utf-8", errors="replace", timeout=LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return FirstRed(LIMIT)
        took = time.perf_counter() - began
        if not (tree / "out" / REPORT_FILE).exists():
            return FirstRed(took, done.stderr[-300:] or f"exit status {done.returncode}")
        return FirstRed(took if done.returncode else inf)


def _metrics(name: str, times: Sequence[float], share: float | None, middle: float | None, note: str) -> list[Metric]:
    """Metrics with goals for the share of times within SOON and for their median, or none."""
    within = sum(seconds <= SOON for seconds in times) / len(times)
    return [
        of(f"{name}_within_15_s", [within], share, 0.0, note=note),
        of(f"{name}_median_seconds", [median(times)], middle, 0.0, "lower"),
    ]
