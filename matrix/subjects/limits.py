"""What a subject cannot run, by axis values alone: data from which its own cells are chosen. Imports the standard
library only, as `protocol`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# The matrix's depth of a chain, of a block-wise draft and of a lookup, for cells that leave it to the engine.
AUTO_DEPTHS: Final = {"dflash": 5, "ngram": 10}
AUTO_DEPTH: Final = 3


class AxisLimit(NamedTuple):
    """Cells that a subject cannot run. why: one sentence. axes: the only ones that `forbids` reads."""

    why: str
    axes: tuple[str, ...]
    forbids: Callable[[Cell], bool]


@cache
def reasons(name: str) -> Mapping[str, str]:
    """Selectors of cells that a subject cannot run, each with the reason, from the part `name` of limits.yaml."""
    import msgspec

    table = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, dict[str, str]])
    return table[name]


@cache
def declared(name: str) -> tuple[AxisLimit, ...]:
    """The limits of `reasons`."""
    from specmatrix.matrix.cells.selector import parse_selector

    found = ((why, parse_selector(cells)) for cells, why in reasons(name).items())
    return tuple(AxisLimit(why, selector.axes, selector) for why, selector in found)


@cache
def request_fields(subject: str) -> frozenset[str]:
    """The fields of a request that a subject translates, from request_fields.yaml."""
    import msgspec

    file = Path(__file__).with_name("request_fields.yaml")
    table = msgspec.yaml.decode(file.read_bytes(), type=dict[str, frozenset[str]])
    return table["all"] | table[subject]


def obstacle(prepared: PreparedCell, subject: str, limits: Iterable[AxisLimit], reasons: Iterable[str] = ()) -> str:
    """The first reason for which a subject cannot run a cell, "" without one: by its limits, else of `reasons`, else a
    field of a request that is none of its `request_fields` and has another value than its default."""
    unknown = (
        f"this subject does not translate {name} of a request"
        for request in prepared.requests
        for name in request.changed
        if name not in request_fields(subject)
    )
    return next(chain((limit.why for limit in limits if limit.forbids(prepared.cell)), reasons, unknown), "")


def chain_depth(cell: Cell, auto: Mapping[str, int] = AUTO_DEPTHS) -> int:
    """Tokens that a cell drafts per round; auto: by algorithm, where the engine chooses. `steps` does not apply to a
    block draft."""
    steps = "auto" if cell.algorithm == "dflash" else cell.steps
    if steps != "auto":
        return int(steps)
    if cell.draft_tokens != "auto":
        return int(cell.draft_tokens) - 1
    return auto.get(cell.algorithm, AUTO_DEPTH)


def chains_only(engine: str) -> Iterator[AxisLimit]:
    """Limits of an engine's drafts to chains, all of whose tokens are verified."""
    yield AxisLimit(f"{engine} drafts chains only", ("topk",), lambda cell: cell.topk not in ("auto", "1"))
    yield AxisLimit(
        f"{engine} verifies all drafts of a chain, so draft_tokens must be steps + 1",
        ("steps", "draft_tokens"),
        lambda cell: "auto" not in (cell.steps, cell.draft_tokens) and int(cell.draft_tokens) != int(cell.steps) + 1,
    )
