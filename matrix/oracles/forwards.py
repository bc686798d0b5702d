"""The forwards that one step needs: one of the target, and the draft's for the tokens that its rounds verify.

The budgets and lengths that DSPARK's rounds should have, from the confidences that the engine shows, by trying every
budget and every threshold. Shares no code with the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.oracles.needed_work import NeededStep
from specmatrix.matrix.subjects.observations import Budgeted, StepForwards
from specmatrix.matrix.zoo.registry import RECIPES

# float32's products of confidences, and their order, may differ from those of float64 by so much.
NEAR = 1e-6
LEAST = 1e-6


def survivals(confidences: Sequence[float]) -> list[float]:
    """Of a row: how likely each draft and all before it are right."""
    return [prod(confidences[: place + 1]) for place in range(len(confidences))]


def worth(rows: Sequence[Sequence[float]], table: str) -> list[float]:
    """Tokens per second of each budget 0, 1, .. for rows of survivals."""
    costs = json.loads(table)
    tokens, rates = costs["sample_batch_tokens"], costs["sample_steps_per_sec"]
    every = sorted((one for row in rows for one in row if one >= LEAST), reverse=True)
    found = []
    for budget in range(len(every) + 1):
        at = max([place for place, least in enumerate(tokens) if least <= len(rows) + budget], default=0)
        found.append((len(rows) + sum(every[:budget])) * rates[at])
    return found


def wrong_lengths(event: Budgeted, budget: int) -> str:
    """A sentence if a result's rows verify other drafts than the `budget` likeliest, or what is left of a length, else
    ""."""
    held = [survivals(row) for row in event.confidences]
    places = [(-one, draft, row) for row, line in enumerate(held) for draft, one in enumerate(line) if one >= LEAST]
    chosen = sorted(places)[:budget]
    edge = -chosen[-1][0] if chosen else 2.0
    for row, (line, length, room) in enumerate(zip(held, event.lengths, event.rooms, strict=True)):
        due = 1 + sum(place[2] == row for place in chosen)
        near = sum(abs(one - edge) < NEAR or abs(one - LEAST) < NEAR for one in line)
        least, most = due - near, due + near
        if room and not min(least, room) <= length <= min(most, room):
            text = f"request {event.rows[row]} verifies {length} nodes of {[round(one, 4) for one in line]}"
            return f"{text} with {room} tokens left; of a budget of {budget} drafts it has {due}"
    return ""


def wrong_budgets(events: Sequence[Budgeted], table: str, drafts: int) -> str:
    """A sentence on the first round whose budget or lengths are not due, else "". drafts: of a whole block."""
    known: dict[int, list[float]] = {}
    waiting: list[Budgeted] = []
    for number, event in enumerate(events):
        if event.budget is not None:
            values = worth([known.get(row, [1.0] * drafts) for row in event.rows], table)
            best = max(values)
            if event.budget >= len(values) or values[event.budget] < best * (1 - NEAR):
                due = values.index(best)
                return (
                    f"event {number}: {len(event.rows)} requests get a budget of {event.budget} drafts; {due} are due"
                )
            waiting.append(event)
            continue
        launch = next((one for one in waiting if one.rows == event.rows), None)
        if launch is None or launch.budget is None:
            return f"event {number}: a result of the requests {event.rows} without a launch"
        waiting = waiting[waiting.index(launch) + 1 :]
        if fault := wrong_lengths(event, launch.budget):
            return f"event {number}: {fault}"
        shown = zip(event.rows, event.confidences, event.rooms, strict=True)
        known |= {row: survivals(line) for row, line, room in shown if room}
    return ""


class DraftShape(NamedTuple):
    """How a drafter works. kind: "none", "token" (a forward per depth), "layers" (one layer per depth), "parallel" (one
    forward with a mask token per further depth), "block" (the root and a row for each draft), "anchored" (a row for
    each draft, the first of which is the root's), "suffix" (no forward, and rounds as wide as the longest draft), or
    "own" (a user's drafter with weights, whose forwards cannot be predicted). steps: of the deepest round."""

    kind: str
    steps: int
    topk: int
    nodes: int

    @classmethod
    def of(cls, cell: Cell, resolved: Mapping[str, Any]) -> DraftShape:
        """The shape of a cell's algorithm as it was resolved."""
        traits = algorithm(cell.algorithm)
        kind = "own" if cell.own_traits is not None else "block" if traits.block else "token"
        kind = kind if traits.needs_draft_model else "suffix" if traits.suffix_trees else "none"
        heads = RECIPES[cell.draft].heads if kind == "block" and cell.draft else None
        if heads is not None and heads.from_anchor:
            kind = "anchored"
        if resolved["enable_multi_layer_eagle"]:
            kind = "layers"
        if resolved["parallel_drafting"]:
            kind = "parallel"
        deepest = max((s["candidate_steps"][-1] for s in resolved["adaptive_slots"]), default=resolved["num_steps"])
        return cls(kind, deepest, resolved["topk"], resolved["num_draft_tokens"])


def draft_forwards(shape: DraftShape, prefill: bool, requests: int, width: int) -> list[tuple[int, int]]:
    """(requests, tokens of each) of every draft forward of a step that is `width` positions wide."""
    if shape.kind in ("none", "suffix"):
        return []
    if shape.kind == "layers":
        # The layers recompute the positions that were based on drafts.
        return [(requests, shape.steps - 1 + width)] * shape.steps
    if shape.kind == "parallel":
        return [(requests, width + shape.steps - 1)]
    if shape.kind in ("block", "anchored"):
        block = [(requests, width - (shape.kind == "anchored"))] * (not prefill)
        return [*block, (requests, width)]
    if prefill:
        return [(requests, width)]
    if shape.topk > 1:  # the last depth's tokens are never read; afterwards the accepted path is
        return [(requests, shape.topk)] * (shape.steps - 1) + [(requests, min(shape.steps, shape.nodes - 1) + 1)]
    return [(requests, 1)] * (width - 2) + [(requests, width)]


class SparePositions(NamedTuple):
    """Maximum positions that a step may read beyond those needed. graph: for rounds with CUDA graphs enabled."""

    eager: int
    graph: int | None = None


def graph_batch(requests: int) -> int:
    """Padded graph batch size: a power of two up to 8, then a multiple of 8."""
    return next((size for size in (1, 2, 4) if size >= requests), -(-requests // 8) * 8)


def needless_forwards(step: NeededStep, ran: StepForwards, shape: DraftShape, spare: SparePositions) -> str:
    """A sentence if a step's forwards differ from those needed, else ""."""
    kind = "prefill" if step.prefill else "round"
    requests, width = len(step.rows), ran.verified if shape.kind == "suffix" and not step.prefill else step.width
    needed, most = step.end, spare.eager
    if spare.graph is not None and not step.prefill:
        if not ran.target:
            return ""  # a graph replays without running Python
        # The first rounds of a shape run or capture the graph's form; rounds with adjusted logits run as they are.
        most = max(spare.graph, needed // 8)
        if ran.target[0][0] == graph_batch(requests):
            requests = graph_batch(requests)
    if list(ran.target) != [(requests, width)]:
        return f"a {kind} of {requests} requests by {width} runs target forwards {_shown(ran.target)}"
    logits = requests * width
    if step.prefill:  # the last position of each request, and with log-probabilities of prompts every one
        logits = requests + logits * step.scored
    if ran.logits != logits:
        return f"a {kind} of {requests} requests by {width} computes {ran.logits} rows of logits; {logits} are needed"
    expected = list(ran.draft) if shape.kind == "own" else draft_forwards(shape, step.prefill, requests, width)
    if list(ran.draft) != expected:
        return (
            f"a {kind} of {requests} requests by {width} runs draft forwards {_shown(ran.draft)}, and "
            f"{_shown(expected)} are needed"
        )
    if not needed <= ran.read <= needed + most:
        return f"a {kind} reads {ran.read} KV positions of each request, and {needed} are needed"
    return ""


def _shown(forwards: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{requests} x {tokens}" for requests, tokens in forwards) or "none"
