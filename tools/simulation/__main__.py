"""`python -m tools.simulation`: random schedules on a simulated device, checking every ledger law and token."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence

from specmatrix.reports.render.console import waiting
from specmatrix.reports.wording import count
from tools.simulation.scenario import draw
from tools.simulation.sweep import Sweep, SweepFailure, attempt, reduce, sweep

SHOWN = (
    "retract.done",
    "abort.running",
    "simulated.abort_draining",
    "simulated.abort_retracting",
    "session.inherited",
    "session.rolled_back",
    "session.restored",
    "session.dropped",
    "session.timed_out",
    "adaptive.switched_up",
    "adaptive.batch_switch",
    "window.slid",
    "prefix.hit",
    "prefix.evict",
    "overlap.dropped",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run, print the coverage or the smallest failing schedule, and return the exit status: 0 if nothing failed."""
    parser = ArgumentParser(prog="python -m tools.simulation", description="Simulate random schedules on a toy device.")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; default: 1")
    parser.add_argument("--schedules", type=int, help="number of schedules, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the schedules")
    parser.add_argument("--replay", type=int, help="run only this schedule, a number printed on failure")
    parser.add_argument("--lag", type=int, choices=range(4), help="steps in flight, instead of those drawn")
    asked = parser.parse_args(words)
    least = 1 if asked.schedules is None else asked.schedules
    if min(asked.seed, asked.replay or 0) < 0 or not asked.minutes > 0 or least < 1:
        parser.error("--seed and --replay must be at least 0, --minutes and --schedules more than 0")
    started = time.perf_counter()
    if asked.replay is None:
        done = _swept(asked.minutes, asked.seed, asked.schedules, asked.lag)
    else:
        done = _replayed(asked.replay, asked.lag)
    print(_text(done, time.perf_counter() - started, asked.lag))
    return int(done.failure is not None)


def _swept(minutes: float, seed: int, schedules: int | None, lag: int | None) -> Sweep:
    end = time.perf_counter() + 60 * minutes

    def more(ran: int) -> bool:
        return time.perf_counter() < end if schedules is None else ran < schedules

    with waiting("simulating schedules"):
        return sweep(seed, more, lag)


def _replayed(number: int, lag: int | None) -> Sweep:
    error, counters = attempt(draw(number, lag))
    failure = None if error is None else reduce(number, error, lag)
    return Sweep(1, Counter(name for name, hits in counters.items() if hits), counters, failure)


def _text(done: Sweep, seconds: float, lag: int | None) -> str:
    if done.failure is not None:
        return failure_text(done.failure, lag)
    rate = f"{done.schedules / seconds * 60:,.0f} a minute"
    lines = [f"{count(done.schedules, 'schedule')} in {seconds:.1f} s, {rate}; no ledger or token error"]
    lines += [f"  {name:22} {done.counters[name]:>10,} in {count(done.hits[name], 'schedule')}" for name in SHOWN]
    return "\n".join(lines)


def failure_text(failure: SweepFailure, lag: int | None = None) -> str:
    """The error, the smallest failing schedule and its repro command."""
    return (
        f"{failure.error}\n"
        f"schedule {failure.seed}, shrunk from {len(failure.drawn.events)} events to {len(failure.smallest.events)}:\n"
        f"{failure.smallest.text()}\n"
        f"again: python -m tools.simulation --replay {failure.seed}" + ("" if lag is None else f" --lag {lag}")
    )


if __name__ == "__main__":
    sys.exit(main())
