"""The adaptive policy "throughput_aware": the depth of the most tokens per second, by measured step times.

A depth's score is the expected number of tokens of a round, 1 + the sum of its positions' acceptance rates, divided by
the time of a step of that depth and batch size. As SGLang's, but its step times come from a file.

What an adaptive policy is: it chooses a depth among its slot's candidates, and hears what each round accepted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot, middle, union


class Decision(NamedTuple):
    """steps: a depth. what: "up" or "down" if the policy changed it now, "held" if only its hysteresis kept it, else
    "stay", or "warm-up" or "between" if no decision was due. average: what the policy expects to be accepted, in
    drafts."""

    steps: int
    what: str = "stay"
    average: float = 0.0


class AdaptivePolicy(Protocol):
    """Pure: its decisions follow from these calls alone, in their order. slot: the index of a round's slot."""

    def choose(self, slot: int, batch_size: int) -> Decision:
        """The depth of the next round, of `batch_size` requests; a candidate of its slot."""

    def observe(self, slot: int, width: int, correct: Sequence[int]) -> Decision:
        """Count a round of `width` nodes, root included. correct: accepted drafts of each live request, at least one.
        Returns the depth of its slot from now on."""


# Makes a policy from its slots, the settings beside them in the file, and the initial depth.
PolicyFactory: TypeAlias = Callable[[Sequence[AdaptiveSlot], Mapping[str, Any], int], AdaptivePolicy]


class ThroughputAware:
    """One depth for all batch sizes; their slots limit it.

    windows: by position of a draft, the shares of requests that accepted it in the latest rounds that drafted it.
    """

    def __init__(self, slots: Sequence[AdaptiveSlot], settings: Mapping[str, Any], steps: int) -> None:
        """steps: the initial depth."""
        self.steps = steps
        self.windows = [deque[float](maxlen=settings["window_size"]) for _ in range(union(tuple(slots))[-1])]
        self._candidates = [slot.candidate_steps for slot in slots]
        self._interval: int = settings["update_interval"]
        self._margin: float = 1 + settings["switch_hysteresis"]
        times = {int(size): row for size, row in settings["step_times"].items()}
        self._sizes = sorted(times)
        self._times = [{int(steps): float(time) for steps, time in times[size].items()} for size in self._sizes]
        self._observed = 0

    def choose(self, slot: int, batch_size: int) -> Decision:
        """A candidate of the slot at once; another one after an interval, if its score is higher by the margin."""
        candidates = self._candidates[slot]
        if self.steps not in candidates:
            best = max(candidates, key=self._scored(batch_size).__getitem__) if self.windows[0] else middle(candidates)
            self._move(best)
        if self._observed < self._interval:
            return Decision(self.steps, "between")
        self._observed = 0
        if any(len(window) < (window.maxlen or 0) for window in self.windows[: self.steps]):
            return Decision(self.steps, "warm-up")
        scores, before = self._scored(batch_size), self.steps
        best = max(candidates, key=scores.__getitem__)
        if best == before or scores[best] <= scores[before] * self._margin:
            return Decision(before, "stay" if best == before else "held")
        self._move(best)
        return Decision(best, "up" if best > before else "down")

    def observe(self, slot: int, width: int, correct: Sequence[int]) -> Decision:
        """Count a round; its average is the number of accepted drafts that the deepest candidate lets expect."""
        for place, window in enumerate(self.windows[: width - 1]):
            window.append(sum(count > place for count in correct) / len(correct))
        self._observed += 1
        return Decision(self.steps, "between", sum(self._rates()))

    def _move(self, steps: int) -> None:
        """Positions that are no longer drafted forget their rates."""
        for window in self.windows[steps:] if steps < self.steps else ():
            window.clear()
        self.steps = steps

    def _scored(self, batch_size: int) -> dict[int, float]:
        """Expected tokens per millisecond by depth. Times are those of the next measured batch size, or the last."""
        times = self._times[min(bisect_left(self._sizes, batch_size), len(self._sizes) - 1)]
        rates = self._rates()
        return {steps: (1 + sum(rates[:steps])) / time for steps, time in times.items()}

    def _rates(self) -> list[float]:
        """The acceptance rate of each position; beyond the last known one they fall on in proportion."""
        rates: list[float] = []
        for window in self.windows:
            if window:
                rates.append(sum(window) / len(window))
            elif len(rates) < 2:
                rates.append(rates[0])
            else:
                ratio = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if rates[0] else 0.0
                rates.append(rates[-1] * min(ratio, 1.0))
        return rates
