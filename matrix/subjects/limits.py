"""What a subject cannot run, by axis values alone: data from which its own cells are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.request import RequestSpec

# The matrix's depth of a chain, of a block-wise draft and of a lookup, for cells that leave it to the engine.
AUTO_DEPTHS: Final = {"dflash": 5, "ngram": 10}
AUTO_DEPTH: Final = 3


class AxisLimit(NamedTuple):
    """Cells that a subject cannot run. why: one sentence. axes: the only ones that `forbids` reads."""

    why: str
    axes: tuple[str, ...]
    forbids: Callable[[Cell], bool]


def no_drafters(reasons: Mapping[str, str]) -> Iterator[AxisLimit]:
    """Limits to other algorithms than those in `reasons`."""
    for name, why in reasons.items():
        yield AxisLimit(why, ("algorithm",), lambda cell, name=name: cell.algorithm == name)  # type: ignore[misc]


def obstacle(cell: Cell, limits: Iterable[AxisLimit], reasons: Iterable[str]) -> str:
    """The first reason for which a subject cannot run a cell, by its limits or else of `reasons`; "" without one."""
    return next(chain((limit.why for limit in limits if limit.forbids(cell)), reasons), "")


def untranslated(requests: Iterable[RequestSpec], read: Set[str]) -> Iterator[str]:
    """A sentence for each field of a request that has another value than its default and is not in `read`."""
    for request in requests:
        yield from (
            f"this subject does not translate {name} of a request" for name in request.changed if name not in read
        )


def chain_depth(cell: Cell, auto: Mapping[str, int] = AUTO_DEPTHS) -> int:
    """Tokens that a cell drafts per round; auto: by algorithm, where the engine chooses. `steps` does not apply to a
    block draft."""
    steps = "auto" if cell.algorithm == "dflash" else cell.steps
    if steps != "auto":
        return int(steps)
    if cell.draft_tokens != "auto":
        return int(cell.draft_tokens) - 1
    return auto.get(cell.algorithm, AUTO_DEPTH)


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
