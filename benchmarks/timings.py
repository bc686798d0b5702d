"""The speed matrix of the two timings: v2's rounds per second over v1's for drafters, trees and batches.

v1 launches a round only once the host has read the one before, so v2 gains what v1's host turn leaves the GPU idle: a
share that falls as rounds grow and rises with what they yield: chains yield what they do in the field, by coins. A goal
is stated over the cells of a shape; none may be slower under v2.
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
# Of 5 drafts that are each taken with this probability a round yields 3.55 tokens; rounds of such a turn, so that all
# turns of an engine stay below the next size of its graphs.
TAKEN, ROUNDS = 0.784, 3


def timings(bench: Bench, overall: float, trees: bool = True) -> Iterator[Metric]:
    """A metric for each cell, and that over all of them, whose goal is `overall`. trees: with cells of a tree too."""
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
    """The median over cells, from the least to the largest of them; red if one of them has no figure."""
    name = f"{bench}_v2_over_v1"
    figures = [cell.ratio for cell in cells if cell.ratio is not None]
    if len(figures) < len(cells):
        return red(name, goal, "; ".join(f"{cell.name}: {cell.note}" for cell in cells if cell.ratio is None))
    enough = [cell.name.removeprefix(f"{bench}_") for cell in cells if cell.ratio is not None and cell.ratio >= goal]
    note = f"median over {len(cells)} cells; {len(enough)} reach it alone{': ' * bool(enough)}{', '.join(enough)}"
    spread = max(cell.spread for cell in cells)
    return Metric(name, median(figures), min(figures), max(figures), goal, cells[0].pairs, spread=spread, note=note)
