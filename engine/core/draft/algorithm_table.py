"""The README's table of algorithms, generated from the traits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from specmatrix.engine.core.draft.algorithms import Traits

HEAD: Final = ("algorithm", "drafts with", "shape", "weights", "draft KV", "timings", "adaptive steps")
WEIGHTS: Final = {"none": "none", "checkpoint": "its own checkpoint", "bundled": "in the target's checkpoint"}


def algorithm_table(algorithms: Iterable[Traits]) -> str:
    """Markdown, one line per algorithm, without a trailing line break."""
    rows = [HEAD, ("---",) * len(HEAD), *map(_row, algorithms)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(traits: Traits) -> tuple[str, ...]:
    return (
        traits.name,
        traits.summary,
        _shape(traits),
        WEIGHTS[traits.draft_weights],
        "in the target's slots" if traits.own_kv else "none",
        "v1 and v2" if traits.max_lag else "v1",
        "yes" if traits.adaptive else "no",
    )


def _shape(traits: Traits) -> str:
    if not traits.drafts:
        return "root only"
    if traits.block:
        return "chain, one block"
    return "chains" if traits.topology == "chain" else "trees of any shape" if traits.irregular else "chains and trees"
