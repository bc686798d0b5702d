"""Independent implementation of adaptive steps, from a cell's settings alone; shares no code with the engine.

The rule: sglang#21599 (one slot), #24055 (a slot per range of batch sizes).
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.start_settings import TEXTS
from specmatrix.matrix.subjects.protocol import Observation, Trace

# Defaults of a slot's settings.
DEFAULTS: Final[dict[str, Any]] = {
    "ema_alpha": 0.2,
    "update_interval": 5,
    "warmup_batches": 10,
    "down_hysteresis": -0.25,
    "up_hysteresis": 0.0,
    "ceiling_coeff": 0,
}
# The default table, SGLang's.
DEFAULT_TABLE: Final[dict[str, Any]] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0},
}


def slots_of(cell: Cell) -> dict[int, dict[str, Any]]:
    """Smallest batch size to its slot's settings; a flat file gives a single slot."""
    text = TEXTS[cell.adaptive]
    table = DEFAULT_TABLE if text is None else json.loads(text)
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


@dataclass(slots=True)
class SlotState:
    """The state of one slot."""

    steps: int
    ema: float
    rounds: int = 0


class AdaptiveMismatch(Exception):
    """The trace deviates from the rule; the message says where."""


class AdaptiveReplay:
    """Replays a trace from its start. lag: steps that may be in flight; tolerance: of an average, in drafts.

    counts: expected counters over the rounds and observations after the first `skipped` ones. deviation: the largest
    difference of an average so far.
    """

    def __init__(self, cell: Cell, lag: int, tolerance: float, skipped: tuple[int, int] = (0, 0)) -> None:
        self.slots = slots_of(cell)
        self.lag = lag
        self.tolerance = tolerance
        self.skipped = skipped
        self.counts: Counter[str] = Counter()
        self.deviation = 0.0
        first = first_depth(cell, self.slots)
        self.states = {size: _begin(slot, first) for size, slot in self.slots.items()}
        self._unread: deque[tuple[int, int]] = deque()
        lowest = min(self.slots)
        self._last = (lowest, self.states[lowest].steps)

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
        return max((size for size in self.slots if size <= batch_size), default=min(self.slots))

    def _activate(self, place: int, batch_size: int, width: int) -> None:
        size = self.slot_of(batch_size)
        steps = self.states[size].steps
        if width != steps + 1:
            raise AdaptiveMismatch(
                f"round {place} of {batch_size} requests has width {width}; slot {size} is at {steps} steps"
            )
        if place >= self.skipped[0]:
            self.counts["adaptive.activated"] += 1
            self.counts["adaptive.batch_switch"] += self._last[0] != size and self._last[1] != steps
        self._last = (size, steps)
        self._unread.append((batch_size, width))

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
        state, rule = self.states[size], self.slots[size]
        mean = sum(seen.correct) / len(seen.correct)
        ema = (1 - rule["ema_alpha"]) * state.ema + rule["ema_alpha"] * mean if seen.width > 1 else state.ema
        due = state.rounds + 1 - rule["warmup_batches"]
        if state.steps == 0 and due > 0 and not due % rule["update_interval"] and ema < 0:
            ema = max(decide(rule, 0, ema) - 1.0, -1.0)
        self.deviation = max(self.deviation, abs(ema - seen.ema))
        if not abs(ema - seen.ema) <= self.tolerance:
            raise AdaptiveMismatch(
                f"{what} gives the average {seen.ema:.6g}; expected {ema:.6g} from the slot's rounds"
            )
        state.rounds += 1
        # Uses the reported average, so that rounding cannot decide at a threshold.
        decision, steps = self._decided(rule, state, seen.ema)
        if (seen.decision, seen.steps) != (decision, steps):
            raise AdaptiveMismatch(
                f"{what} decided {seen.decision!r}, {seen.steps} steps; expected {decision!r}, {steps} steps"
            )
        state.steps, state.ema = steps, seen.ema
        if index >= self.skipped[1]:
            self.counts["adaptive.switched_up"] += decision == "up"
            self.counts["adaptive.switched_down"] += decision == "down"
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

    def _decided(self, rule: Mapping[str, Any], state: SlotState, ema: float) -> tuple[str, int]:
        due = state.rounds - rule["warmup_batches"]
        if due <= 0:
            return "warm-up", state.steps
        if due % rule["update_interval"]:
            return "between", state.steps
        steps = decide(rule, state.steps, ema)
        return "up" if steps > state.steps else "down" if steps < state.steps else "stay", steps


def _begin(slot: Mapping[str, Any], first: int) -> SlotState:
    candidates = sorted(set(slot["candidate_steps"]))
    steps = first if first in candidates else candidates[len(candidates) // 2]
    return SlotState(steps, float(steps - 1))
