"""What a subject cannot run, by axis values alone: data from which its own cells are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell


class AxisLimit(NamedTuple):
    """Cells that a subject cannot run. why: one sentence. axes: the only ones that `forbids` reads."""

    why: str
    axes: tuple[str, ...]
    forbids: Callable[[Cell], bool]


def defaults_only(reasons: Mapping[str, str]) -> Iterator[AxisLimit]:
    """Limits of each axis in `reasons` to its default."""
    for name, why in reasons.items():
        yield AxisLimit(why, (name,), lambda cell, name=name: getattr(cell, name) != cell._field_defaults[name])  # type: ignore[misc]


def chains_only(topk: str, sizes: str) -> Iterator[AxisLimit]:
    """Limits of drafts to chains, all of whose tokens are verified."""
    yield AxisLimit(topk, ("topk",), lambda cell: cell.topk not in ("auto", "1"))
    yield AxisLimit(
        sizes,
        ("steps", "draft_tokens"),
        lambda cell: "auto" not in (cell.steps, cell.draft_tokens) and int(cell.draft_tokens) != int(cell.steps) + 1,
    )
