"""One measured figure: its median with minimum and maximum, its goal, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal

# A figure whose peer varies more than this within the run says more about the machine than about the code.
MOST_SPREAD: Final = 0.30
State = Literal["met", "missed", "noisy", "red", "not measured", "reported"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`ratio` is the figure that the goal is stated in: a quotient of times, a share, or seconds.

    better: which side of the goal is good. goal None: reported without one. pairs: interleaved pairs, or repetitions.
    spread: of the peer's (or, without a peer, the own) times. ratio None: no figure, and `note` says why.
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
        """`red`: the compared outputs differ, so there is no speed to speak of."""
        if self.ratio is None:
            return "red" if self.red else "not measured"
        if self.spread > MOST_SPREAD:
            return "noisy"
        if self.goal is None:
            return "reported"
        good = self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal
        return "met" if good else "missed"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; name, ratio, min, max, goal and pairs are stable."""
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
    """The metric of repeated figures."""
    return Metric(name, median(figures), min(figures), max(figures), goal, len(figures), better, spread, note=note)


def red(name: str, goal: float | None, why: str) -> Metric:
    """A metric whose outputs were wrong."""
    return Metric(name, None, None, None, goal, 0, red=True, note=why)


def unmeasured(name: str, goal: float | None, why: str) -> Metric:
    """A metric that could not be taken."""
    return Metric(name, None, None, None, goal, 0, note=why)


def spread_of(times: Sequence[float]) -> float:
    """Width of the middle 80 % of the times, as a share of their median; one disturbed run in ten is forgiven."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    inner = ordered[cut : len(ordered) - cut]
    return (inner[-1] - inner[0]) / median(ordered)
