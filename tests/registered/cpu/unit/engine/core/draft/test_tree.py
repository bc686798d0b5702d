"""Tree arithmetic, with the worked example of EAGLE-2 style selection."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.draft.algorithms import max_depth, tree_pool


@pytest.mark.parametrize(("steps", "topk", "pool"), [(1, 4, 4), (2, 2, 6), (5, 4, 68), (3, 1, 3)])
def test_the_pool_counts_every_candidate_level_by_level(steps, topk, pool):
    levels = [topk] + [topk * topk] * (steps - 1)
    assert tree_pool(steps, topk) == sum(levels) == pool


@pytest.mark.parametrize(("steps", "nodes", "depth"), [(3, 4, 3), (3, 6, 3), (5, 3, 2), (1, 2, 1), (4, 2, 1)])
def test_a_path_is_no_longer_than_steps_or_nodes_allow(steps, nodes, depth):
    """sglang#26866: the accept matrix is this + 1 wide."""
    assert max_depth(steps, nodes) == depth
