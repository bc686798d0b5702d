"""Draft tree topology on the host: the arithmetic that configuration, drafters and tests share.

A tree of N nodes takes N consecutive slots behind the committed tokens. Node 0 is the root (the bonus token of the
previous round); `parents[n] < n`, `parents[0] == -1`.
"""

from __future__ import annotations

from collections.abc import Sequence


def tree_pool(num_steps: int, topk: int) -> int:
    """Candidate nodes of a draft tree, root not counted, all eligible for selection (EAGLE-2): topk at the first depth,
    topk * topk at each later one."""
    return topk + (num_steps - 1) * topk * topk


def max_depth(num_steps: int, num_draft_tokens: int) -> int:
    """Longest path below the root: the accept matrix is this + 1 wide, not num_draft_tokens (sglang#26866)."""
    return min(num_steps, num_draft_tokens - 1)


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node, the root's being 0. ValueError if a parent does not precede its child."""
    result: list[int] = []
    for node, parent in enumerate(parents):
        if (parent != -1) if node == 0 else not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; allowed: -1 for the root, else an earlier node")
        result.append(0 if node == 0 else result[parent] + 1)
    return result
