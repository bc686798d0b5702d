"""Interleaved timing of two systems, so that disturbances affect both alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specmatrix.benchmarks.metric import Metric, of, red, spread_of
from specmatrix.matrix.run.turns import by_turns


@dataclass(frozen=True, slots=True)
class Pairs:
    """Seconds of each run, in order. wrong: a description of an output mismatch, "" if none."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    wrong: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Their time over ours, by pair."""
        return tuple(their / our for our, their in zip(self.ours, self.theirs, strict=True))

    def metric(self, name: str, goal: float | None, scale: float = 1.0, note: str = "") -> Metric:
        """The ratios as a metric, which is red on an output mismatch. scale: multiplies each ratio, if the two did
        different amounts of work."""
        if self.wrong:
            return red(name, goal, self.wrong)
        return of(name, [scale * ratio for ratio in self.ratios], goal, spread_of(self.theirs), note=note)


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def own_time(call: Callable[[], float]) -> float:
    """The time that the call itself returns."""
    return call()


def interleave(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    pairs: int,
    warm: int = 1,
    clock: Callable[[Callable[[], Any]], float] = seconds,
) -> Pairs:
    """Time `pairs` runs of each in alternating order, after `warm` untimed runs of each."""
    ours_taken, theirs_taken = by_turns([lambda _: clock(ours), lambda _: clock(theirs)], pairs, warm)
    return Pairs(tuple(ours_taken), tuple(theirs_taken))
