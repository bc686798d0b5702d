"""Random schedules per minute of the simulation on one core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from specmatrix.benchmarks.metric import Metric, spread_of, wrong
from specmatrix.matrix.simulation.sweep import sweep

NAME: Final = "simulated_schedules_per_minute"
GOAL: Final = 20_000.0
SEEDS: Final = (20, 21, 22, 23, 24)
SCHEDULES: Final = 1000


def measure(count: int = SCHEDULES) -> Iterator[Metric]:
    """The rate of sweeps of `count` schedules each, with every ledger law and token checked; red if a schedule fails.

    Measured in CPU time of this single-threaded process, which other processes do not affect.
    """
    spent: list[float] = []
    for seed in SEEDS:
        start = time.process_time()
        done = sweep(seed, lambda ran: ran < count)
        spent.append(time.process_time() - start)
        if done.failure is not None:
            yield wrong(NAME, GOAL, f"schedule {done.failure.seed} fails: {done.failure.error}")
            return
    note = f"{len(SEEDS)} seeds of {count:,} schedules, {sum(spent):.2f} s of one core"
    yield Metric(NAME, [60 * count / seconds for seconds in spent], GOAL, spread_of(spent), note=note)
