"""`specmatrix simulate`: random schedules on a simulated device, checking every ledger law and token."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from specmatrix.errors import ConfigError
from specmatrix.matrix.simulation.scenario import draw
from specmatrix.matrix.simulation.sweep import Sweep, SweepFailure, attempt, reduce, sweep
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.wording import count

SHOWN = (
    "retract.done",
    "abort.running",
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


def simulate(minutes: float, seed: int, schedules: int | None, replay: int | None, json_: bool) -> int:
    """Run, print the coverage or the smallest failing schedule, and return the exit status: 0 if nothing failed.

    ConfigError on an invalid option.
    """
    if not 0 < minutes < float("inf"):
        raise ConfigError(f"minutes must be above 0 and finite, got {minutes}")
    if schedules is not None and schedules < 1:
        raise ConfigError(f"schedules must be at least 1, got {schedules}")
    for name, value in (("seed", seed), ("replay", replay)):
        if value is not None and value < 0:
            raise ConfigError(f"{name} must be at least 0, got {value}")
    started = time.perf_counter()
    done = _swept(minutes, seed, schedules) if replay is None else _replayed(replay)
    seconds = time.perf_counter() - started
    print(json.dumps(_record(done, seconds), indent=2) if json_ else _text(done, seconds))
    return int(done.failure is not None)


def _swept(minutes: float, seed: int, schedules: int | None) -> Sweep:
    end = time.perf_counter() + 60 * minutes

    def more(ran: int) -> bool:
        return time.perf_counter() < end if schedules is None else ran < schedules

    with waiting("simulating schedules"):
        return sweep(seed, more)


def _replayed(number: int) -> Sweep:
    error, counters = attempt(draw(number))
    failure = None if error is None else reduce(number, error)
    return Sweep(1, Counter(name for name, hits in counters.items() if hits), counters, failure)


def _text(done: Sweep, seconds: float) -> str:
    if done.failure is not None:
        return failure_text(done.failure)
    rate = f"{done.schedules / seconds * 60:,.0f} a minute"
    lines = [f"{count(done.schedules, 'schedule')} in {seconds:.1f} s, {rate}; no ledger or token error"]
    lines += [f"  {name:22} {done.counters[name]:>10,} in {count(done.hits[name], 'schedule')}" for name in SHOWN]
    return "\n".join(lines)


def failure_text(failure: SweepFailure) -> str:
    """The error, the smallest failing schedule and its repro command."""
    return (
        f"{failure.error}\n"
        f"schedule {failure.seed}, shrunk from {len(failure.drawn.events)} events to {len(failure.smallest.events)}:\n"
        f"{failure.smallest.text()}\n"
        f"again: specmatrix simulate --replay {failure.seed}"
    )


def _record(done: Sweep, seconds: float) -> dict[str, Any]:
    failure = done.failure
    return {
        "schedules": done.schedules,
        "seconds": round(seconds, 3),
        "counters": dict(done.counters),
        "hits": dict(done.hits),
        "failure": None
        if failure is None
        else {"seed": failure.seed, "error": failure.error, "schedule": failure.smallest.text()},
    }
