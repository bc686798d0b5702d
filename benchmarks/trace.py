"""Profile of steady-state rounds: the GPU's idle share, and the host's blocking calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from specmatrix.benchmarks.metric import Metric
from specmatrix.benchmarks.steady import Bench

ROUNDS: Final = 16
LEAD: Final = 2
WINDOWS: Final = 3
MAX_IDLE: Final = 0.03
# CUDA runtime calls that block until the device has finished.
BLOCKING: Final = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy", "cudaMemset", "cudaFree")
EVENT: Final = "cudaEventSynchronize"


class TraceWindow(NamedTuple):
    """Share of time without a running kernel or copy, and calls per round: blocking ones, and event waits."""

    idle: float
    blocking: float
    waits: float


def trace(bench: Bench) -> Iterator[Metric]:
    """Rounds with v2, plain and with 5 drafts."""
    for name, asked in (("decode", {}), ("eagle3_round_5", bench.chain(5))):
        with bench.decoding(1, {"spec_version": "v2", **asked}) as engine:
            windows = [window(engine.rounds) for _ in range(WINDOWS)]
        waits = f"{windows[0].waits:g} waits per round for the previous round's event"
        yield Metric(f"{bench.name}_{name}_idle_share", [w.idle for w in windows], MAX_IDLE, 0.0, "lower", waits)
        yield Metric(f"{bench.name}_{name}_blocking_calls", [w.blocking for w in windows], 0.0, 0.0, "lower")


def window(rounds: Callable[[int], object]) -> TraceWindow:
    """Profile some rounds, and zero rounds to measure what the profiler and the final wait add.

    Every round has the same number of device activities. The first LEAD rounds refill the pipeline after a
    synchronisation and are excluded from the idle share.
    """
    count = LEAD + ROUNDS
    (busy, names), (_, alone) = _profiled(lambda: rounds(count)), _profiled(lambda: rounds(0))
    blocking = sum(name in BLOCKING for name in names) - sum(name in BLOCKING for name in alone)
    steady = sorted(busy)[len(busy) * LEAD // count :]
    return TraceWindow(idle_share(steady), blocking / count, names.count(EVENT) / count)


def _profiled(call: Callable[[], object]) -> tuple[list[tuple[float, float]], list[str]]:
    """The GPU's busy intervals in microseconds, and the names of all host calls."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
    busy, names = [], []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            busy.append((event.time_range.start, event.time_range.end))
        else:
            names.append(event.name)
    return busy, names


def idle_share(busy: Iterable[tuple[float, float]]) -> float:
    """Share of the time between the first start and the last end that no interval covers; 1.0 without intervals."""
    ordered = sorted(busy)
    if not ordered:
        return 1.0
    first, reached, idle = ordered[0][0], ordered[0][1], 0.0
    for begin, end in ordered[1:]:
        idle += max(0.0, begin - reached)
        reached = max(reached, end)
    return idle / (reached - first)
