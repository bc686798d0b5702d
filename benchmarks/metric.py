"""One measured figure with its goal, and the interleaved pairs of runs that most figures come from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from specmatrix.matrix.run.speed import by_turns

# A figure whose peer varies more than this within the run is noisy: it measures the machine, not the code.
MAX_SPREAD: Final = 0.30
State = Literal["met", "missed", "noisy", "red", "not measured", "reported"]
Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Repeated figures, to whose median the goal applies: ratios of times, shares, or seconds.

    goal: None for a figure without one. better: the good direction. spread: of the peer's times (without a peer, of our
    own). figures are empty if nothing was measured, with the reason in `note`; red: because the outputs were wrong.
    """

    name: str
    figures: Sequence[float]
    goal: float | None
    spread: float = 0.0
    better: Better = "higher"
    note: str = ""
    red: bool = False

    @property
    def median(self) -> float | None:
        return median(self.figures) if self.figures else None

    @property
    def state(self) -> State:
        if self.median is None:
            return "red" if self.red else "not measured"
        if self.spread > MAX_SPREAD:
            return "noisy"
        if self.goal is None:
            return "reported"
        good = self.median >= self.goal if self.better == "higher" else self.median <= self.goal
        return "met" if good else "missed"

    def as_dict(self) -> dict[str, Any]:
        """As JSON-serialisable data; name, ratio, min, max, goal and pairs are stable keys."""
        return {
            "name": self.name,
            "ratio": self.median,
            "min": min(self.figures, default=None),
            "max": max(self.figures, default=None),
            "goal": self.goal,
            "pairs": len(self.figures),
            "better": self.better,
            "spread": self.spread,
            "state": self.state,
            "note": self.note,
        }


def wrong(name: str, goal: float | None, why: str) -> Metric:
    """A metric whose outputs were wrong, so that its speed means nothing."""
    return Metric(name, (), goal, note=why, red=True)


def unmeasured(name: str, goal: float | None, why: str) -> Metric:
    """A metric that could not be measured."""
    return Metric(name, (), goal, note=why)


def spread_of(times: Sequence[float]) -> float:
    """Width of the middle 80 % of the times relative to their median, so one outlier in ten is tolerated."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    inner = ordered[cut : len(ordered) - cut]
    return (inner[-1] - inner[0]) / median(ordered)


class Pairs(NamedTuple):
    """Seconds of each run of both sides, in order. differs: how their outputs differ, "" if they do not."""

    ours: Sequence[float]
    theirs: Sequence[float]
    differs: str = ""

    @property
    def ratios(self) -> list[float]:
        """Their time over ours, pair by pair."""
        return [their / our for our, their in zip(self.ours, self.theirs, strict=True)]

    def metric(self, name: str, goal: float | None, note: str = "") -> Metric:
        """The ratios as a metric, red if the outputs differ."""
        if self.differs:
            return wrong(name, goal, self.differs)
        return Metric(name, self.ratios, goal, spread_of(self.theirs), note=note)


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
    return Pairs(*by_turns([lambda _: clock(ours), lambda _: clock(theirs)], pairs, warm))
