"""Many schedules one after another: until the time is up, a count is reached, or one fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from specmatrix.matrix.simulation.scenario import Scenario, draw
from specmatrix.matrix.simulation.shrink import shrink
from specmatrix.matrix.simulation.world import run

STRIDE = 1_000_000_000  # schedules of one sweep; the next sweep's seeds begin behind them
AUDIT_EVERY = 16  # schedules between two whose journal is replayed too; the laws are checked in all


@dataclass(frozen=True, slots=True)
class SweepFailure:
    """A schedule that broke something. error is the sentence of `smallest`, which fails as the drawn one did."""

    seed: int
    drawn: Scenario
    smallest: Scenario
    error: str


@dataclass(slots=True)
class Sweep:
    """What a sweep did. hits: schedules that hit each probe; probes: the sums."""

    schedules: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    failure: SweepFailure | None = None


def sweep(seed: int, more: Callable[[int], bool]) -> Sweep:
    """Run the schedules of `seed` while `more`(how many ran) says so, or until one fails."""
    done = Sweep()
    while done.failure is None and more(done.schedules):
        number = seed * STRIDE + done.schedules
        scenario = draw(number)
        error, probes = attempt(scenario, audited=done.schedules % AUDIT_EVERY == 0)
        if error is not None:
            done.failure = reduce(number, error)
        done.schedules += 1
        done.probes.update(probes)
        done.hits.update(name for name, count in probes.items() if count)
    return done


def reduce(seed: int, error: Exception) -> SweepFailure:
    """The smallest schedule that fails as the seed's does."""
    drawn = draw(seed)
    smallest = shrink(drawn, lambda scenario: type(attempt(scenario)[0]) is type(error))
    found = attempt(smallest)[0] or error
    return SweepFailure(seed, drawn, smallest, f"{type(found).__name__}: {found}")


def attempt(scenario: Scenario, audited: bool = True) -> tuple[Exception | None, Counter[str]]:
    """Run one schedule: what it raised, if anything, and its probes."""
    try:
        return None, run(scenario, audited)
    except Exception as error:  # a broken engine may raise anything, and all of it is a finding
        return error, Counter()
