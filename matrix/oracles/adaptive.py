"""Independent implementation of adaptive steps, from a cell's settings alone; shares no code with the engine.

The rules: sglang#21599 (one slot), #24055 (a slot per range of batch sizes), and SGLang's "throughput_aware".
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from specmatrix.matrix.cells.cell import ADAPTIVE_TEXTS, Cell
from specmatrix.matrix.subjects.observations import Observation, Trace

# Defaults of a slot's settings.
DEFAULTS: Final[dict[str, Any]] = {
    "ema_alpha": 0.2,
    "update_interval": 5,
    "warmup_batches": 10,
    "down_hysteresis": -0.25,
    "up_hysteresis": 0.0,
    "ceiling_coeff": 0,
}
# Defaults of the settings of "throughput_aware".
PRICED: Final[dict[str, Any]] = {"window_size": 20, "update_interval": 5, "switch_hysteresis": 0.1}
# Relative difference of two scores that rounding may turn.
ROUNDING: Final = 1e-9
# The default table, SGLang's.
DEFAULT_TABLE: Final[dict[str, Any]] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0},
}


def _table(cell: Cell) -> dict[str, Any]:
    text = ADAPTIVE_TEXTS[cell.adaptive]
    table: dict[str, Any] = DEFAULT_TABLE if text is None else json.loads(text)
    return table


def priced(cell: Cell) -> dict[str, Any] | None:
    """The settings of "throughput_aware", None for another policy."""
    table = _table(cell)
    own = {key: value for key, value in table.items() if not key.isdigit() and key != "strategy"}
    return PRICED | own if table.get("strategy") == "throughput_aware" else None


def slots_of(cell: Cell) -> dict[int, dict[str, Any]]:
    """Smallest batch size to its slot's settings; a flat file gives a single slot."""
    table = _table(cell)
    if priced(cell) is not None:
        return {int(key): value for key, value in table.items() if key.isdigit()}
    shared = DEFAULTS | {key: value for key, value in table.items() if not key.isdigit()}
    sizes = {int(key): shared | value for key, value in table.items() if key.isdigit()}
    return sizes or {1: shared}


def first_depth(cell: Cell, slots: Mapping[int, Mapping[str, Any]]) -> int:
    """The configured depth, else the median of all candidates (the upper one of two)."""
    if cell.steps != "auto":
        return int(cell.steps)
    every: list[int] = sorted({steps for slot in slots.values() for steps in slot["candidate_steps"]})
    return every[len(every) // 2]


def widest(slots: Mapping[int, Mapping[str, Any]]) -> int:
    """Nodes (root included) of the widest possible round."""
    return 1 + int(max(max(slot["candidate_steps"]) for slot in slots.values()))


def decide(slot: Mapping[str, Any], steps: int, ema: float) -> int:
    """The new depth that a slot decides from depth `steps` and average `ema` (accepted drafts)."""
    candidates = sorted(set(slot["candidate_steps"]))
    if steps == 0:  # nothing was learnt since, so the next depth is tried
        return int(candidates[min(1, len(candidates) - 1)])
    floors = {c: (0.5 if c == 0 else c - 0.5) + slot["down_hysteresis"] for c in candidates if c < steps}
    target = min((c for c, floor in floors.items() if ema <= floor), default=steps)
    if target == steps:
        chain = [c for c in candidates if c >= steps]
        passed = sum(ema > c - 0.5 + slot["up_hysteresis"] for c in chain)
        target = chain[min(passed, len(chain) - 1)]
    if slot["ceiling_coeff"] > 0 and target <= steps:
        cap = max(1, math.ceil(ema * slot["ceiling_coeff"]))
        target = max((c for c in candidates if c <= min(cap, target)), default=candidates[0])
    return target


class AdaptiveMismatch(Exception):
    """The trace deviates from the rule; the message says where."""


@dataclass(slots=True)
class SlotState:
    """The state of one slot of "ema"."""

    steps: int
    ema: float
    rounds: int = 0


class EmaRule:
    """Each slot follows an average of its own rounds."""

    def __init__(self, slots: Mapping[int, Mapping[str, Any]], first: int) -> None:
        self.slots = slots
        self.states = {size: _begin(slot, first) for size, slot in slots.items()}

    def begin(self, size: int, batch_size: int, reported: int) -> tuple[int, str]:
        """The depth of a round of a slot."""
        return self.states[size].steps, ""

    def average(self, size: int, seen: Observation) -> float:
        """The slot's average after a round."""
        state, rule = self.states[size], self.slots[size]
        mean = sum(seen.correct) / len(seen.correct)
        ema = (1 - rule["ema_alpha"]) * state.ema + rule["ema_alpha"] * mean if seen.width > 1 else state.ema
        due = state.rounds + 1 - rule["warmup_batches"]
        if state.steps == 0 and due > 0 and not due % rule["update_interval"] and ema < 0:
            ema = max(decide(rule, 0, ema) - 1.0, -1.0)
        return float(ema)

    def observe(self, size: int, seen: Observation) -> tuple[str, int]:
        """The decision after a round and the slot's depth. Uses the reported average, so that rounding cannot decide at
        a threshold."""
        state, rule = self.states[size], self.slots[size]
        state.rounds += 1
        state.ema = seen.ema
        due = state.rounds - rule["warmup_batches"]
        if due <= 0:
            return "warm-up", state.steps
        if due % rule["update_interval"]:
            return "between", state.steps
        before, state.steps = state.steps, decide(rule, state.steps, seen.ema)
        return "up" if state.steps > before else "down" if state.steps < before else "stay", state.steps


class ThroughputRule:
    """One depth for all slots: that of the most expected tokens per time of a step, decided as a round begins.

    rounds: (drafts, accepted drafts of each request) of every round; forgotten: by position, how many of the first
    rounds no longer count.
    """

    def __init__(self, settings: Mapping[str, Any], slots: Mapping[int, Mapping[str, Any]], first: int) -> None:
        self.settings, self.slots, self.steps = settings, slots, first
        self.rounds: list[tuple[int, tuple[int, ...]]] = []
        self.forgotten: Counter[int] = Counter()
        self.since = 0

    def begin(self, size: int, batch_size: int, reported: int) -> tuple[int, str]:
        """The depth of a round and what decided it; of scores that only rounding can tell apart, the reported one."""
        candidates = sorted(set(self.slots[size]["candidate_steps"]))
        if self.steps not in candidates:
            cold = candidates[len(candidates) // 2]
            self._go(self._best(candidates, batch_size, reported) if self.rounds else cold)
        if self.since < self.settings["update_interval"]:
            return self.steps, ""
        self.since, before = 0, self.steps
        if any(len(self._shares(place)) < self.settings["window_size"] for place in range(before)):
            return before, ""
        best = self._best(candidates, batch_size, reported)
        lead = self._score(best, batch_size) / self._score(before, batch_size) - 1 - self.settings["switch_hysteresis"]
        if best == before:
            return before, ""
        if not (reported == best if abs(lead) < ROUNDING else lead > 0):
            return before, "held"
        self._go(best)
        return best, "up" if best > before else "down"

    def average(self, size: int, seen: Observation) -> float:
        """Expected accepted drafts of the deepest candidate after a round, so that the rates of positions that nothing
        drafts count too."""
        self.rounds.append((seen.width - 1, seen.correct))
        self.since += 1
        return self._expected(widest(self.slots) - 1)

    def observe(self, size: int, seen: Observation) -> tuple[str, int]:
        """Nothing is decided as a round ends."""
        return "between", self.steps

    def _shares(self, place: int) -> list[float]:
        """Shares of requests that accepted a position, in the latest rounds that drafted it."""
        latest = map(self.rounds.__getitem__, range(len(self.rounds) - 1, self.forgotten[place] - 1, -1))
        known = islice((given for drafts, given in latest if drafts > place), self.settings["window_size"])
        return [sum(drafts > place for drafts in given) / len(given) for given in known]

    def _expected(self, steps: int) -> float:
        rates: list[float] = []
        for place in range(steps):
            if shares := self._shares(place):
                rates.append(math.fsum(shares) / len(shares))
            elif place == 1 or not rates[0]:
                rates.append(rates[0])
            else:
                rates.append(min(rates[-1], rates[-1] * (rates[-1] / rates[0]) ** (1 / (place - 1))))
        return math.fsum(rates)

    def _score(self, steps: int, batch_size: int) -> float:
        sizes = sorted(map(int, self.settings["step_times"]))
        measured = min((size for size in sizes if size >= batch_size), default=sizes[-1])
        return (1 + self._expected(steps)) / float(self.settings["step_times"][str(measured)][str(steps)])

    def _best(self, candidates: list[int], batch_size: int, reported: int) -> int:
        scores = {steps: self._score(steps, batch_size) for steps in candidates}
        near = [steps for steps in candidates if scores[steps] >= max(scores.values()) * (1 - ROUNDING)]
        return reported if reported in near else near[0]

    def _go(self, steps: int) -> None:
        """Positions that are no longer drafted start again."""
        deepest = max(drafts for drafts, _ in self.rounds) if steps < self.steps and self.rounds else 0
        for place in range(steps, deepest):
            self.forgotten[place] = len(self.rounds)
        self.steps = steps


class AdaptiveReplay:
    """Replays a trace from its start. lag: steps that may be in flight; tolerance: of an average, in drafts.
    graph_batch: the largest batch size of CUDA graphs, whose sizes round up a batch before it has a slot.

    counts: expected counters over the rounds and observations after the first `skipped` ones. deviation: the largest
    difference of an average so far.
    """

    def __init__(
        self, cell: Cell, lag: int, tolerance: float, skipped: tuple[int, int] = (0, 0), graph_batch: int = 0
    ) -> None:
        self.slots = slots_of(cell)
        self.lag = lag
        self.tolerance = tolerance
        self.skipped = skipped
        self.graph_batch = graph_batch
        self.counts: Counter[str] = Counter()
        self.deviation = 0.0
        first, settings = first_depth(cell, self.slots), priced(cell)
        self.rule = EmaRule(self.slots, first) if settings is None else ThroughputRule(settings, self.slots, first)
        self._unread: deque[tuple[int, int]] = deque()
        lowest = min(self.slots)
        self._last = (lowest, _begin(self.slots[lowest], first).steps)

    def walk(self, trace: Trace) -> None:
        """Raise AdaptiveMismatch at the first entry that deviates from the rule."""
        done = 0
        for index, seen in enumerate(trace.observations):
            for place in range(done, seen.activated):
                self._activate(place, *trace.rounds[place])
            done = seen.activated
            self._observe(index, seen)
        for place in range(done, len(trace.rounds)):
            self._activate(place, *trace.rounds[place])

    def slot_of(self, batch_size: int) -> int:
        """The slot (by its smallest batch size) for a batch size; the lowest slot below all bounds."""
        if batch_size <= self.graph_batch:
            batch_size = next(size for size in (1, 2, 4, *range(8, 2048, 8)) if size >= batch_size)
        return max((size for size in self.slots if size <= batch_size), default=min(self.slots))

    def _activate(self, place: int, batch_size: int, width: int) -> None:
        size = self.slot_of(batch_size)
        steps, decision = self.rule.begin(size, batch_size, width - 1)
        if width != steps + 1:
            raise AdaptiveMismatch(
                f"round {place} of {batch_size} requests has width {width}; slot {size} is at {steps} steps"
            )
        if place >= self.skipped[0]:
            self.counts["adaptive.activated"] += 1
            self._count(decision)
            if not decision:
                self.counts["adaptive.batch_switch"] += self._last[0] != size and self._last[1] != steps
        self._last = (size, steps)
        self._unread.append((batch_size, width))

    def _count(self, decision: str) -> None:
        self.counts["adaptive.switched_up"] += decision == "up"
        self.counts["adaptive.switched_down"] += decision == "down"
        self.counts["adaptive.held"] += decision == "held"

    def _observe(self, index: int, seen: Observation) -> None:
        what = f"observation {index} ({seen.batch_size} requests, width {seen.width})"
        self._find(what, seen)
        if not seen.correct or len(seen.correct) > seen.batch_size or max(seen.correct) >= seen.width:
            raise AdaptiveMismatch(f"{what} has impossible accepted drafts {list(seen.correct)}")
        size = self.slot_of(seen.batch_size)
        if seen.slot != size:
            raise AdaptiveMismatch(
                f"{what} is counted for slot {seen.slot} (smallest batch size); it belongs to slot {size}"
            )
        average = self.rule.average(size, seen)
        self.deviation = max(self.deviation, abs(average - seen.ema))
        if not abs(average - seen.ema) <= self.tolerance:
            raise AdaptiveMismatch(
                f"{what} gives the average {seen.ema:.6g}; expected {average:.6g} from the slot's rounds"
            )
        decision, steps = self.rule.observe(size, seen)
        if (seen.decision, seen.steps) != (decision, steps):
            raise AdaptiveMismatch(
                f"{what} decided {seen.decision!r}, {seen.steps} steps; expected {decision!r}, {steps} steps"
            )
        if index >= self.skipped[1]:
            self._count(decision)
            self.counts["adaptive.undrafted"] += seen.width == 1

    def _find(self, what: str, seen: Observation) -> None:
        """Consume the observed round. Rounds launched more than `lag` before the last one have been read; they are
        unobserved if all their requests had ended."""
        while len(self._unread) > self.lag + 1:
            self._unread.popleft()
        while self._unread:
            if self._unread.popleft() == (seen.batch_size, seen.width):
                return
        raise AdaptiveMismatch(f"{what} matches no round that may have been read at this point")


def _begin(slot: Mapping[str, Any], first: int) -> SlotState:
    candidates = sorted(set(slot["candidate_steps"]))
    steps = first if first in candidates else candidates[len(candidates) // 2]
    return SlotState(steps, float(steps - 1))
