"""The forwards that one step needs: one of the target, and the draft's for the tokens that its rounds verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.oracles.needed_work import NeededStep
from specmatrix.matrix.subjects.protocol import StepForwards
from specmatrix.matrix.zoo.recipes import RECIPES


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
