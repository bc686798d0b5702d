"""Trees as lists of parents."""

from __future__ import annotations

from collections.abc import Sequence


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node; the root, whose parent is -1, has depth 0. A parent must precede its child."""
    assert parents[0] == -1
    result = [0]
    for node, parent in enumerate(parents[1:], start=1):
        assert 0 <= parent < node, (node, parent)
        result.append(result[parent] + 1)
    return result
