"""Draft tree topology on the host: arithmetic shared by configuration and drafters.

A tree of N nodes uses N consecutive slots after the committed tokens. Node 0 is the root (the previous round's bonus
token); `parents[n] < n`, `parents[0] == -1`.
"""

from __future__ import annotations


def tree_pool(num_steps: int, topk: int) -> int:
    """Candidate nodes of a draft tree, without the root, all eligible for selection (EAGLE-2): topk at the first depth,
    topk * topk at each later one."""
    return topk + (num_steps - 1) * topk * topk


def nodes_within(room: int, topk: int, most: int) -> int:
    """Most nodes, at most `most`, of a tree that may emit `room` tokens: those of depth below `room`, root included."""
    nodes = level = 1
    for _ in range(min(room, most) - 1):
        level *= topk
        nodes += level
    return min(nodes, most)


def max_depth(num_steps: int, num_draft_tokens: int) -> int:
    """Longest path below the root: the accept matrix has this + 1 columns, not num_draft_tokens (sglang#26866)."""
    return min(num_steps, num_draft_tokens - 1)
