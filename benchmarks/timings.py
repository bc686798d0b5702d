"""The speed matrix of the two timings: v2 must not be slower than v1 for any drafter, tree or batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.metric import Metric
from benchmarks.steady import Bench

GOAL: Final = 0.98


def timings(bench: Bench) -> Iterator[Metric]:
    """v2's rounds per second over v1's, cell by cell."""
    tree = bench.chain(3) | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    cells: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("none", 8, {}),
        ("none", 32, {}),
        ("eagle3_s3", 1, bench.chain(3)),
        ("eagle3_s3", 8, bench.chain(3)),
        ("eagle3_s7", 1, bench.chain(7)),
        ("eagle3_s3_k4_n8", 1, tree),
        ("eagle3_s3_k4_n8", 8, tree),
    )
    for name, batch, asked in cells:
        pairs = bench.pair({**asked, "spec_version": "v2"}, {**asked, "spec_version": "v1"}, batch)
        yield pairs.metric(f"{bench.name}_{name}_batch_{batch}_v2_over_v1", GOAL)
