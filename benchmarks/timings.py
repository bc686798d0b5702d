"""The speed matrix of the two timings: v2's rounds per second over v1's for drafters, trees and batch sizes.

v1 launches a round only after the host has read the previous one, so v2 gains the GPU's idle time in between. Its share
falls with the cost of a round and rises with its yield, so chains get a typical acceptance length from simulated coins
(as SGLANG_SIMULATE_ACC_LEN). A goal applies to the median over a shape's cells; no cell may be slower with v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

import specmatrix.engine.device_step
from specmatrix.benchmarks.metric import Metric, wrong
from specmatrix.benchmarks.steady import Bench
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.sampling import SamplingRows, uniform
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult

GOAL: Final = 0.98
BATCHES: Final = (1, 8, 32)
DEPTH: Final = 5
# With this acceptance probability a round of 5 drafts yields 3.55 tokens; rounds per repetition, so that all of an
# engine's stay below its next CUDA-graph size.
TAKEN, ROUNDS = 0.784, 3


def timings(bench: Bench, overall: float, trees: bool = True) -> Iterator[Metric]:
    """A metric per cell, and one over all of them with the goal `overall`. trees: also include tree cells."""
    tree = bench.chain(3) | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    cells: list[tuple[str, int, dict[str, Any]]] = [("none", batch, {}) for batch in BATCHES]
    cells += [("eagle3_s3_k4_n8", batch, tree) for batch in BATCHES[:2] if trees]
    found = []
    for name, batch, asked in cells:
        found.append(_cell(bench, name, batch, asked))
        yield found[-1]
    for batch in BATCHES:
        with accepted_by_coins(TAKEN):
            found.append(_cell(bench, f"eagle3_s{DEPTH}", batch, bench.chain(DEPTH), ROUNDS))
        yield found[-1]
    yield over_all(found, bench.name, overall)


def _cell(bench: Bench, name: str, batch: int, asked: dict[str, Any], rounds: int | None = None) -> Metric:
    pairs = bench.pair({**asked, "spec_version": "v2"}, {**asked, "spec_version": "v1"}, batch, rounds)
    return pairs.metric(f"{bench.name}_{name}_batch_{batch}_v2_over_v1", GOAL)


def over_all(cells: list[Metric], bench: str, goal: float) -> Metric:
    """The medians of all cells as one metric; red if any cell has no figure."""
    name = f"{bench}_v2_over_v1"
    failed = [f"{cell.name}: {cell.note}" for cell in cells if cell.median is None]
    if failed:
        return wrong(name, goal, "; ".join(failed))
    figures = {cell.name.removeprefix(f"{bench}_"): cell.median for cell in cells if cell.median is not None}
    enough = [cell for cell, figure in figures.items() if figure >= goal]
    note = f"median over {len(cells)} cells; {len(enough)} reach it alone{': ' * bool(enough)}{', '.join(enough)}"
    return Metric(name, list(figures.values()), goal, max(cell.spread for cell in cells), note=note)


@contextmanager
def accepted_by_coins(rate: float) -> Iterator[None]:
    """Accept each draft of a chain with probability `rate`: a round does all of its work, but coins decide its yield.

    The coins depend on a request's length only, so that requests that start together end together.
    """
    verify = specmatrix.engine.device_step.verify

    def tossed(
        logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, ranks: Ranks = ALONE
    ) -> VerifyResult:
        verdict = verify(logits, tree, start, rows, ranks)
        if not tree.depth:
            return verdict
        positions = start[:, None] + tree.depths[:, 1:]
        coins = uniform(torch.zeros_like(start), positions.contiguous())
        return verdict._replace(count=1 + (coins < rate).long().cumprod(1).sum(1))

    try:
        specmatrix.engine.device_step.verify = tossed
        yield
    finally:
        specmatrix.engine.device_step.verify = verify
