"""One measured figure: its median, minimum and maximum, its goal, and whether it is too noisy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal

# A figure whose peer varies more than this within the run is noisy: it measures the machine, not the code.
MOST_SPREAD: Final = 0.30
State = Literal["met", "missed", "noisy", "red", "not measured", "reported"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`ratio` is the figure to which the goal applies: a ratio of times, a share, or seconds.

    better: the good direction. goal None: no goal. pairs: interleaved pairs, or repetitions. spread: of the peer's
    times (or, without a peer, of our own). ratio None: no figure, with the reason in `note`.
    """

    name: str
    ratio: float | None
    low: float | None
    high: float | None
    goal: float | None
    pairs: int
    better: Literal["higher", "lower"] = "higher"
    spread: float = 0.0
    red: bool = False
    note: str = ""

    @property
    def state(self) -> State:
        """`red`: the compared outputs differ, so speed is meaningless."""
        if self.ratio is None:
            return "red" if self.red else "not measured"
        if self.spread > MOST_SPREAD:
            return "noisy"
        if self.goal is None:
            return "reported"
        good = self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal
        return "met" if good else "missed"

    def as_dict(self) -> dict[str, Any]:
        """As JSON-serialisable data; name, ratio, min, max, goal and pairs are stable keys."""
        return {
            "name": self.name,
            "ratio": self.ratio,
            "min": self.low,
            "max": self.high,
            "goal": self.goal,
            "pairs": self.pairs,
            "better": self.better,
            "spread": self.spread,
            "state": self.state,
            "note": self.note,
        }


def of(
    name: str,
    figures: Sequence[float],
    goal: float | None,
    spread: float,
    better: Literal["higher", "lower"] = "higher",
    note: str = "",
) -> Metric:
    """The metric of a repeated measurement."""
    return Metric(name, median(figures), min(figures), max(figures), goal, len(figures), better, spread, note=note)


def red(name: str, goal: float | None, why: str) -> Metric:
    """A metric whose outputs were wrong."""
    return Metric(name, None, None, None, goal, 0, red=True, note=why)


def unmeasured(name: str, goal: float | None, why: str) -> Metric:
    """A metric that could not be measured."""
    return Metric(name, None, None, None, goal, 0, note=why)


def spread_of(times: Sequence[float]) -> float:
    """Width of the middle 80 % of the times relative to their median, so one outlier in ten is tolerated."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    inner = ordered[cut : len(ordered) - cut]
    return (inner[-1] - inner[0]) / median(ordered)
