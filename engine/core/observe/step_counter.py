"""The interface of step observers, and the observer that counts steps.

Behavioural counters: what the engine did, as opposed to what was requested.

The `effective` gate reads them. A feature whose counters stay at zero did not run, whatever the engine reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from specmatrix.engine.core.schedule.grammar import CHANGED
from specmatrix.engine.core.schedule.request import Finish, Request
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.errors import LedgerError

# What each counts.
COUNTERS: Final[dict[str, str]] = json.loads(Path(__file__).with_name("counters.json").read_text(encoding="utf-8"))

# Only a GPU run can hit these.
GPU: Final = ("graph.replayed", "graph.eager", "graph.waited")
# Only an engine with several ranks hits these.
RANKS: Final = ("rank.step",)
# Hits of these are defects; every other counter must be hit at least once in a complete nightly run.
ZERO: Final[dict[str, str]] = {
    "graph.waited": "the replay of a CUDA graph must not wait for the device",
    "stamp.wrong": "a slot with another position's KV was read",
}


class Counters:
    """Counts by counter name. Raises LedgerError on an unknown name, which is a bug."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def hit(self, name: str, by: int = 1) -> None:
        if name not in self.counts:
            raise LedgerError(f"unknown counter {name!r}")
        self.counts[name] += by


# What the columns of StepResult.grammar count.
ON_DEVICE: Final = ("grammar.forbade", "grammar.masked_drafts")


class RowOutcome(Enum):
    """The outcome of one row's result."""

    DELIVERED = "its tokens were delivered to the request"
    FAILED = "delivering its tokens raised an error"
    INVALID = "its drafts were invalid, which ended the request"
    DROPPED = "the request had already ended"


# One row of a resolved step: the request, the outcome, the tokens delivered, and the finish that they caused.
Delivery: TypeAlias = tuple[Request, RowOutcome, int, Finish | None]


class StepObserver(Protocol):
    """Receives every step before its launch and after its results were delivered; must not change anything."""

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        """Before the launch of a plan. in_flight: earlier launched steps that are not yet resolved."""
        ...

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        """After a result. deliveries: one per row of the plan; fewer if an engine bug interrupted delivery."""
        ...


class StepCounter:
    """Counts what steps did. context_length: maximum positions per request."""

    def __init__(self, counters: Counters, context_length: int) -> None:
        self._hit = counters.hit
        self._context_length = context_length

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        if in_flight:
            self._hit("overlap.in_flight")

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        self._hit("stamp.checked", result.stamps_checked)
        self._hit("stamp.wrong", result.stamps_wrong)
        dropped = taken = random = 0
        for index, (request, outcome, took, finish) in enumerate(deliveries):
            if outcome is RowOutcome.DROPPED:
                dropped += 1
                continue
            taken += took
            if not plan.greedy and not request.params.greedy:
                random += took
            if finish is not None:
                self._count_finish(request, finish, overshoot=result.counts[index] - took)
        self._hit("overlap.dropped", dropped)
        self._hit("sample.greedy", taken - random)
        self._hit("sample.random", random)
        if plan.nodes > 1:
            self._count_drafts(plan.nodes, plan.budget, result, deliveries)
        if plan.constrained:
            self._count_grammars(plan.prefill, result, deliveries)

    def _count_drafts(self, nodes: int, budget: int | None, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        """Count the drafts of a round with trees of `nodes` nodes, of which `result.lengths` were verified."""
        uncounted = (RowOutcome.DROPPED, RowOutcome.INVALID)
        rows = [row for row, (_, outcome, _, _) in enumerate(deliveries) if outcome not in uncounted]
        counts = [result.counts[row] for row in rows]
        lengths = [nodes if result.lengths is None else result.lengths[row] for row in rows]
        whole = [min(length, len(result.tokens[0])) for length in lengths]
        drafted = [(got, due) for got, due in zip(counts, whole, strict=True) if due > 1]
        self._hit("spec.drafted", sum(lengths) - len(rows))
        self._hit("spec.accepted", sum(counts) - len(rows))
        self._hit("spec.rejected", sum([got == 1 for got, _ in drafted]))
        self._hit("spec.full_accept", sum([got == due for got, due in drafted]))
        self._hit("spec.budgeted", budget is not None and budget < len(deliveries) * (nodes - 1))
        self._hit("spec.shortened", sum([length < nodes for length in lengths]))
        self._hit("spec.undrafted", len(rows) - len(drafted))
        self._hit("tree.branched", sum([result.branched[row] for row in rows]))
        self._hit("tree.compacted", sum([result.moved[row] for row in rows]))

    def _count_grammars(self, prefill: bool, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        """Count what the grammars of a step's requests did; without their drafts in a prefill step."""
        assert result.legality is not None
        for index, (request, outcome, took, finish) in enumerate(deliveries):
            if request.constraint is None or outcome is not RowOutcome.DELIVERED:
                continue
            count, longest = result.counts[index], len(result.tokens[index])
            self._hit("grammar.changed", result.legality[index][:took].count(CHANGED))
            self._hit("grammar.stuck", finish is not None and finish.reason == "error")
            if not prefill:
                for name, by in zip(ON_DEVICE, result.grammar[index] if result.grammar else (), strict=False):
                    self._hit(name, by)
                self._hit("grammar.accepted", count - 1)
                self._hit("grammar.rejected", count < longest)
                self._hit("grammar.ended_inside", finish is not None and finish.reason == "stop" and took < count)

    def _count_finish(self, request: Request, finish: Finish, overshoot: int) -> None:
        if finish.reason == "length":
            self._hit("finish.length")
        elif finish.reason == "stop":
            self._hit("finish.stop_string" if isinstance(finish.matched, str) else "finish.stop_token")
        self._hit("finish.context", request.num_tokens == self._context_length)
        self._hit("finish.overshoot", overshoot)
