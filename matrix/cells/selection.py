"""Which cells a command runs: a stage of the lock file, narrowed by a selector, or one cell by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import MEANINGS, Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, expect
from specmatrix.matrix.cells.enumerate import Prefix, launches
from specmatrix.matrix.cells.selector import Selector, parse_selector
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.reports.wording import count

PRODUCT: Final = "product"


def select(stage: str, text: str | None = None, limit: int | None = None) -> list[Cell]:
    """The cells of a stage that a selector picks, all of them for None; the id of a cell picks it whether the stage
    holds it or not.

    Stage `product` is every cell that the axes and constraints allow. ConfigError on an unknown stage, an empty or bad
    selector, a combination that is no cell, or a choice that leaves nothing.
    """
    if text is None:
        return _chosen(stage, None, limit)
    if not text.strip():
        raise ConfigError("--cells is empty, as of a shell variable that is not set; leave it out to run every cell")
    if is_id(text):
        cell = Cell.from_id(text.strip())
        expect(cell)
        return [cell]
    selector = parse_selector(text)
    cells = _chosen(stage, selector, limit)
    if not cells:
        raise ConfigError(
            f"selector {text!r} picks none of the cells of stage {stage!r}; {_elsewhere(stage, selector)}"
        )
    return cells


def of_gpus(cells: Iterable[Cell], gpus: int) -> list[Cell]:
    """The cells that a tier with so many GPUs runs: those with a rank for each GPU, or all that need none on a CPU."""
    return [cell for cell in cells if (cell.ranks == gpus if gpus else not cell.gpus)]


def _chosen(stage: str, selector: Selector | None, limit: int | None) -> list[Cell]:
    if stage not in (*STAGES, PRODUCT):
        raise ConfigError(f"stage {stage!r} is unknown; it must be one of {', '.join((*STAGES, PRODUCT))}")
    source = all_cells(None if selector is None else selector.may) if stage == PRODUCT else iter(stage_cells(stage))
    return list(islice(filter(selector and selector.picks, source), limit))


def _elsewhere(stage: str, selector: Selector) -> str:
    """Where the cells may be that a stage does not have."""
    if stage == PRODUCT:
        return "no cell of the axes is of this kind"
    last = STAGES[-1]
    if found := len(_chosen(last, selector, None)):
        return f"--stage {last} has {count(found, 'cell')} of this kind"
    return f"the lock file has none of this kind, and --stage {PRODUCT} looks among all that the axes allow"


def is_id(text: str) -> bool:
    """True for a text whose every part is a part of cell ids."""
    return all(part in MEANINGS for part in text.strip().split("."))


def all_cells(may: Callable[[Prefix], bool] | None = None) -> Iterator[Cell]:
    """Every cell of the product of the axes that is neither impossible nor redundant, launch by launch; only of those
    launches for which `may` holds."""
    ruled_out = [c for c in CONSTRAINTS if c.kind in ("impossible", "redundant")]
    for launch, tails in launches(ruled_out, may):
        yield from (Cell._make(launch + tail) for tail in tails)
