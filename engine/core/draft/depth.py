"""The next round's draft depth: static, or adapted to batch size and acceptance (sglang#21599, #24055).

A pure controller: its inputs are batch sizes and counts of accepted drafts; it uses no request, device or clock. What
the acceptance decides is its policy's, here "ema". A static depth is the case of one slot with one candidate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot, Slots, middle, union
from specmatrix.engine.core.draft.throughput import AdaptivePolicy, Decision
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.step import padded
from specmatrix.errors import EngineBug, shown

TRACE_LENGTH: Final = 4096  # most recent rounds and records kept
COUNTED: Final = {"up": "adaptive.switched_up", "down": "adaptive.switched_down", "held": "adaptive.held"}


class ObservedRound(NamedTuple):
    """One observed round.

    slot: smallest batch size of the slot that counts it. width: nodes that the round verified. mean_correct: mean
    accepted drafts per request. ema: the policy's average after the round; a round without drafts does not change it.
    steps: the slot's depth after it. decision: of the policy, as in `Decision`.
    correct: accepted drafts of each live request. activated: rounds activated before this one was observed.
    """

    slot: int
    batch_size: int
    width: int
    mean_correct: float
    ema: float
    steps: int
    decision: str
    correct: tuple[int, ...]
    activated: int


class Activation(NamedTuple):
    """A round about to launch. width: nodes per request, root included."""

    batch_size: int
    width: int


class Slot:
    """Depth and moving average of one batch-size range. Reads only its own rounds."""

    def __init__(self, settings: AdaptiveSlot, steps: int) -> None:
        """steps: the initial depth; if it is not a candidate of this slot, the middle candidate (the upper of two)."""
        candidates = settings.candidate_steps
        self.settings = settings
        self.steps = steps if steps in candidates else middle(candidates)
        self.ema = float(self.steps - 1)
        self.rounds = 0

    def observe(self, mean_correct: float, drafted: bool = True) -> str:
        """Count one round by its mean number of accepted drafts; returns the decision, as in `Decision`."""
        rule = self.settings
        if drafted:
            self.ema = (1 - rule.ema_alpha) * self.ema + rule.ema_alpha * mean_correct
        self.rounds += 1
        due = self.rounds - rule.warmup_batches
        if due <= 0:
            return "warm-up"
        if due % rule.update_interval:
            return "between"
        before, self.steps = self.steps, self._target()
        return "up" if self.steps > before else "down" if self.steps < before else "stay"

    def _target(self) -> int:
        """The depth that the average suggests; it may be several candidates away. From 0, where nothing is learnt, the
        next candidate is probed."""
        rule = self.settings
        target = self.steps
        if not target:
            probe = next((c for c in rule.candidate_steps if c), 0)
            if self.ema < 0:
                self.ema = float(probe - 1)
            return probe
        for lower in reversed([c for c in rule.candidate_steps if c < self.steps]):
            if self.ema > (lower - 0.5 if lower else 0.5) + rule.down_hysteresis:
                break
            target = lower
        if target == self.steps:
            for higher in [c for c in rule.candidate_steps if c > self.steps]:
                if self.ema <= target - 0.5 + rule.up_hysteresis:
                    break
                target = higher
        return self._capped(target)

    def _capped(self, target: int) -> int:
        """Apply the ceiling: at most a multiple of the average. It does not prevent a step up."""
        if not self.settings.ceiling_coeff or target > self.steps:
            return target
        cap = max(1, math.ceil(self.ema * self.settings.ceiling_coeff))
        fitting = [c for c in self.settings.candidate_steps if c <= min(cap, target)]
        return fitting[-1] if fitting else self.settings.candidate_steps[0]


class Ema:
    """The policy "ema": each slot follows the moving average of its own rounds."""

    def __init__(self, slots: Sequence[AdaptiveSlot], steps: int) -> None:
        self.slots = tuple(Slot(settings, steps) for settings in slots)

    def choose(self, slot: int, batch_size: int) -> Decision:
        """The slot's depth, which `observe` decided."""
        return Decision(self.slots[slot].steps)

    def observe(self, slot: int, width: int, correct: Sequence[int]) -> Decision:
        """Count a round; one of a single node leaves the average."""
        one = self.slots[slot]
        decision = one.observe(sum(correct) / len(correct), drafted=width > 1)
        return Decision(one.steps, decision, one.ema)


class DraftSteps:
    """The draft depth of every round. Call `activate` before a round and `observe` with its result, both in round
    order.

    steps: the initial depth. width: nodes of a round, for drafts where they are not steps + 1 (a tree, no drafter, a
    block); it is then static. policy: needed for other slots than those of "ema". graph_batch: the largest batch size
    of CUDA graphs, 0 without: up to it a batch is padded before it has a slot, as in SGLang.
    """

    def __init__(
        self,
        slots: Slots,
        steps: int,
        counters: Counters,
        *,
        width: int | None = None,
        policy: AdaptivePolicy | None = None,
        graph_batch: int = 0,
    ) -> None:
        self.slots = slots
        self.policy = policy or Ema(slots, steps)
        self.initial = steps
        self.activated = 0
        self.rounds: deque[Activation] = deque(maxlen=TRACE_LENGTH)
        self.trace: deque[ObservedRound] = deque(maxlen=TRACE_LENGTH)
        self.max_width = width or union(slots)[-1] + 1
        self.adapts = width is None
        self.stopped = False
        self._counters = counters
        self._bounds = [settings.batch_from for settings in slots]
        self._graph_batch = graph_batch
        self._active = 0
        self._steps = steps if steps in slots[0].candidate_steps else middle(slots[0].candidate_steps)

    @classmethod
    def static(cls, steps: int, width: int, counters: Counters) -> DraftSteps:
        """The same depth and width for every round. steps 0 and width 1: no drafter."""
        return cls((AdaptiveSlot(1, (steps,)),), steps, counters, width=width)

    @property
    def steps(self) -> int:
        """The depth of the most recently activated round."""
        return self._steps

    def stop(self) -> None:
        """Draft nothing from the next round on; buffers keep the size of the widest round."""
        self.adapts, self.stopped = False, True

    def activate(self, batch_size: int) -> int:
        """Nodes per request, root included, of the next round, which has `batch_size` requests."""
        if not self.adapts:
            return 1 if self.stopped else self.max_width
        slot = self._slot(batch_size)
        steps, what, _ = self.policy.choose(slot, batch_size)
        candidates = self.slots[slot].candidate_steps
        if steps not in candidates:
            raise EngineBug(f"the adaptive policy chose depth {shown(steps)} for {batch_size} requests of {candidates}")
        self._counters.hit("adaptive.activated")
        if what in COUNTED:
            self._counters.hit(COUNTED[what])
        elif slot != self._active and steps != self._steps:
            self._counters.hit("adaptive.batch_switch")
        self._active, self._steps = slot, steps
        self.activated += 1
        self.rounds.append(Activation(batch_size, self._steps + 1))
        return self._steps + 1

    def observe(self, batch_size: int, width: int, correct: Sequence[int]) -> None:
        """Record a round of `batch_size` requests and `width` nodes. correct: accepted drafts of each live request.

        The slot is that of the round's own batch size, whatever the current one is. Without live requests nothing
        counts.
        """
        if not self.adapts or not correct:
            return
        slot = self._slot(batch_size)
        steps, what, average = self.policy.observe(slot, width, correct)
        self._counters.hit("adaptive.undrafted", width == 1)
        if what in COUNTED:
            self._counters.hit(COUNTED[what])
        mean = sum(correct) / len(correct)
        seen = (average, steps, what, tuple(correct), self.activated)
        self.trace.append(ObservedRound(self._bounds[slot], batch_size, width, mean, *seen))

    def _slot(self, batch_size: int) -> int:
        """The index of the slot with the largest lower bound not above the batch size, else the first."""
        size = padded(batch_size) if batch_size <= self._graph_batch else batch_size
        return max(0, bisect_right(self._bounds, size) - 1)
