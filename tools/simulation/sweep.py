"""Runs many schedules, up to a time limit, a number, or the first failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.simulation.scenario import Scenario, draw
from tools.simulation.shrink import shrink
from tools.simulation.world import run

STRIDE = 1_000_000_000  # seeds reserved for one sweep
AUDIT_EVERY = 16  # every n-th schedule also replays its journal; all check the laws


@dataclass(frozen=True, slots=True)
class SweepFailure:
    """A failing schedule. smallest: its reduced form, which fails with the same exception type; error: its message."""

    seed: int
    drawn: Scenario
    smallest: Scenario
    error: str


@dataclass(slots=True)
class Sweep:
    """Result of a sweep. hits: number of schedules with a non-zero counter, by counter; counters: counter sums."""

    schedules: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    failure: SweepFailure | None = None


def sweep(seed: int, more: Callable[[int], bool], lag: int | None = None) -> Sweep:
    """Run the schedules of `seed` while more(number run) is true, or until one fails. lag: of every schedule, None for
    the drawn ones."""
    done = Sweep()
    while done.failure is None and more(done.schedules):
        number = seed * STRIDE + done.schedules
        scenario = draw(number, lag)
        error, counters = attempt(scenario, audited=done.schedules % AUDIT_EVERY == 0)
        if error is not None:
            done.failure = reduce(number, error, lag)
        done.schedules += 1
        done.counters.update(counters)
        done.hits.update(name for name, count in counters.items() if count)
    return done


def reduce(seed: int, error: Exception, lag: int | None = None) -> SweepFailure:
    """Shrink the seed's schedule to the smallest that raises the same exception type."""
    drawn = draw(seed, lag)
    smallest = shrink(drawn, lambda scenario: type(attempt(scenario)[0]) is type(error))
    found = attempt(smallest)[0] or error
    return SweepFailure(seed, drawn, smallest, f"{type(found).__name__}: {found}")


def attempt(scenario: Scenario, audited: bool = True) -> tuple[Exception | None, Counter[str]]:
    """Run one schedule; returns what it raised (None if nothing) and its counters."""
    try:
        return None, run(scenario, audited)
    except Exception as error:  # a broken engine may raise anything
        return error, Counter()
