"""`specmatrix simulate`: random schedules on a simulated device, checking every ledger law and token."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Any

import typer

from specmatrix.matrix.simulation.scenario import draw
from specmatrix.matrix.simulation.sweep import Sweep, SweepFailure, attempt, reduce, sweep
from specmatrix.options import Json, Minutes
from specmatrix.reports.render.console import print_answer
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.wording import count

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


def simulate(
    minutes: Minutes = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the schedules")] = 0,
    schedules: Annotated[int | None, typer.Option(min=1, help="number of schedules, instead of --minutes")] = None,
    replay: Annotated[
        int | None, typer.Option(min=0, help="run only this schedule, a number printed on failure")
    ] = None,
    lag: Annotated[int | None, typer.Option(min=0, max=3, help="steps in flight, instead of those drawn")] = None,
    json_: Json = False,
) -> int:
    """Run, print the coverage or the smallest failing schedule, and return the exit status: 0 if nothing failed."""
    started = time.perf_counter()
    done = _swept(minutes, seed, schedules, lag) if replay is None else _replayed(replay, lag)
    seconds = time.perf_counter() - started
    print_answer(_record(done, seconds), _text(done, seconds, lag), json_)
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
        f"again: specmatrix simulate --replay {failure.seed}" + ("" if lag is None else f" --lag {lag}")
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
