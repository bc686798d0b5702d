"""Draft tree topology on the host: arithmetic shared by configuration, drafters and tests.

A tree of N nodes uses N consecutive slots after the committed tokens. Node 0 is the root (the previous round's bonus
token); `parents[n] < n`, `parents[0] == -1`.
"""

from __future__ import annotations

from collections.abc import Sequence


def tree_pool(num_steps: int, topk: int) -> int:
    """Candidate nodes of a draft tree, without the root, all eligible for selection (EAGLE-2): topk at the first depth,
    topk * topk at each later one."""
    return topk + (num_steps - 1) * topk * topk


def max_depth(num_steps: int, num_draft_tokens: int) -> int:
    """Longest path below the root: the accept matrix has this + 1 columns, not num_draft_tokens (sglang#26866)."""
    return min(num_steps, num_draft_tokens - 1)


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node; the root has depth 0. Raises ValueError if a parent does not precede its child."""
    result: list[int] = []
    for node, parent in enumerate(parents):
        if (parent != -1) if node == 0 else not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; allowed: -1 for the root, else an earlier node")
        result.append(0 if node == 0 else result[parent] + 1)
    return result
