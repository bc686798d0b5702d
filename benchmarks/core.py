"""One core of the host for two that are compared: what is bound by launches is as quick as the core that it is on.

Neighbours on a shared host slow its cores by other amounts and at other times, and whoever waits for a GPU wakes up on
another core than before. One side that spends its time on the host then has a spread that is the scheduler's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TRIES: Final = 3
# Additions of a try, about a millisecond.
LENGTH: Final = 20_000


def loop() -> float:
    """Seconds of the quickest of TRIES short loops."""
    found = []
    for _ in range(TRIES):
        start = time.perf_counter()
        total = 0
        for number in range(LENGTH):
            total += number
        found.append(time.perf_counter() - start)
    return min(found)


@contextmanager
def quickest_core(cost: Callable[[], float] = loop) -> Iterator[None]:
    """This thread stays on the core where `cost` is least now, and so does what it starts meanwhile."""
    allowed = os.sched_getaffinity(0)
    costs: dict[int, float] = {}
    try:
        for core in sorted(allowed):
            os.sched_setaffinity(0, {core})
            costs[core] = cost()
        os.sched_setaffinity(0, {min(costs, key=costs.__getitem__)})
        yield
    finally:
        os.sched_setaffinity(0, allowed)
