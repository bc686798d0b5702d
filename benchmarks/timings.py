"""The speed matrix of the two timings: v2's rounds per second over v1's for drafters, trees and batch sizes.

v1 launches a round only after the host has read the previous one, so v2 gains the GPU's idle time in between. Its share
falls with the cost of a round and rises with its yield, so chains get a typical acceptance length from simulated coins.
A goal applies to the median over a shape's cells; no cell may be slower with v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import torch

from specmatrix.benchmarks.acceptance import accepted_by_coins
from specmatrix.benchmarks.metric import Metric, red
from specmatrix.benchmarks.steady import Bench

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
    rate = torch.full((), TAKEN, dtype=torch.float64, device=bench.device)
    for batch in BATCHES:
        with accepted_by_coins(rate):
            found.append(_cell(bench, f"eagle3_s{DEPTH}", batch, bench.chain(DEPTH), ROUNDS))
        yield found[-1]
    yield over_all(found, bench.name, overall)


def _cell(bench: Bench, name: str, batch: int, asked: dict[str, Any], rounds: int | None = None) -> Metric:
    pairs = bench.pair({**asked, "spec_version": "v2"}, {**asked, "spec_version": "v1"}, batch, rounds)
    return pairs.metric(f"{bench.name}_{name}_batch_{batch}_v2_over_v1", GOAL)


def over_all(cells: list[Metric], bench: str, goal: float) -> Metric:
    """The median, minimum and maximum over cells; red if any cell has no figure."""
    name = f"{bench}_v2_over_v1"
    figures = [cell.ratio for cell in cells if cell.ratio is not None]
    if len(figures) < len(cells):
        return red(name, goal, "; ".join(f"{cell.name}: {cell.note}" for cell in cells if cell.ratio is None))
    enough = [cell.name.removeprefix(f"{bench}_") for cell in cells if cell.ratio is not None and cell.ratio >= goal]
    note = f"median over {len(cells)} cells; {len(enough)} reach it alone{': ' * bool(enough)}{', '.join(enough)}"
    spread = max(cell.spread for cell in cells)
    return Metric(name, median(figures), min(figures), max(figures), goal, cells[0].pairs, spread=spread, note=note)
