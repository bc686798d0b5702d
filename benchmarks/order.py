"""When a run's first red cell comes, with the stored order of cells and without it.

Estimated for every fault that a cell of the order is known to find: the plan of the stage for two workers, with the
measured seconds of the cells in front of the first that finds the fault. Cells that the order does not name have their
estimate, scaled as the measured ones are to theirs. Other cells may find a fault earlier, so that both are bounds from
above. `--measure N` plants N sampled faults and runs the stage until its first red cell, both ways.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Final

from specmatrix.benchmarks.metric import Metric, of, red, unmeasured
from specmatrix.ci.planner import Host, plan
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.selection import of_gpus
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.order import ORDER_FILE, OrderedCell, stored_order
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.plant import environment, planted

STAGE: Final = "pr"
WORKERS: Final = 2
SOON: Final = 15.0  # seconds
SHARE: Final = 0.9
MEDIAN: Final = 6.0  # seconds
# What a run takes besides its cells: the start of both workers (2 s), and what their first cells load.
BEGIN: Final = 4.0
SEED: Final = 0
LIMIT: Final = 300.0


def measure(sample: int = 0) -> list[Metric]:
    """Share of faults found within SOON, and median seconds; both with and without the order.

    sample: number of faults to plant. ConfigError if there are fewer.
    """
    order = stored_order()
    faults = sorted({fault for row in order for fault in row.faults})
    if not faults:
        return [unmeasured("first_red_within_15_s", SHARE, "no order is stored; see `specmatrix lock --order`")]
    cpu = [fault.id for fault in select(()) if fault.cells]
    if not 0 <= sample <= len(cpu):
        raise ConfigError(f"--measure must be between 0 and {len(cpu)}, the faults that cells find, got {sample}")
    ranked = {row.cell: place for place, row in enumerate(order)}
    found = []
    for word, ranks in (("", ranked), ("_unordered", {})):
        times = list(first_reds(order, ranks).values())
        note = f"estimate for {len(cpu)} faults; a cell of the order and the stage is known to find {len(times)}"
        times += [inf] * (len(cpu) - len(times))
        found += _metrics(f"first_red{word}", times, word == "", note)
    chosen = random.Random(SEED).sample(cpu, sample)
    for word in ("", "_unordered") if chosen else ():
        found += measured(f"first_red_measured{word}", chosen, word == "")
    return found


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


def measured(name: str, faults: Sequence[str], ordered: bool) -> list[Metric]:
    """The same, of runs that end at their first red cell; a run without one takes for ever."""
    times = []
    for fault in select(faults):
        with planted(fault.patch) as tree:
            if not ordered:
                (tree / "matrix" / "cover" / ORDER_FILE.name).unlink()
            words = ["run", "--stage", STAGE, "--fail-fast", "--workers", str(WORKERS), "--out", str(tree / "out")]
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "specmatrix", *words], cwd=tree, env=environment(tree), capture_output=True,
                timeout=LIMIT,
            )  # fmt: skip
            times.append(time.perf_counter() - began)
        if done.returncode not in (0, 1):
            return [red(name, None, f"the run with {fault.id} ended with {done.returncode}: {done.stderr.decode()}")]
        if done.returncode == 0:
            times[-1] = inf
    each = ", ".join(f"{fault.id} {took:.1f} s" for fault, took in zip(select(faults), times, strict=True))
    return _metrics(name, times, False, f"runs with faults sampled with seed {SEED}: {each}")


def _metrics(name: str, times: Sequence[float], goal: bool, note: str) -> list[Metric]:
    share = sum(seconds <= SOON for seconds in times) / len(times)
    return [
        of(f"{name}_within_15_s", [share], SHARE if goal else None, 0.0, note=note),
        of(f"{name}_median_seconds", [median(times)], MEDIAN if goal else None, 0.0, "lower"),
    ]
