"""Selection of the cells that a command runs: a stage of the lock file, optionally filtered, or one cell by id.

The order in which cells run: those first that find most faults per second, as a kill matrix shows.

`cells.order` next to the lock file has a line for each of them: its id, its measured seconds, and the faults that it is
known to find. Cells that it does not name follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from sys import maxsize
from typing import Final, NamedTuple, TypeAlias

import msgspec

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import MEANINGS, Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, LEFT_OUT, expect, explain
from specmatrix.matrix.cells.enumerate import Prefix, starts
from specmatrix.matrix.cells.selector import Selector, parse_selector
from specmatrix.matrix.cells.tiers import TIERS, TIMED
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.lock import own_cells
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.reports.history import SUFFIX, median_seconds
from specmatrix.reports.schema import UNJUDGED_STATES, CheaperStage, Header, ReportError
from specmatrix.reports.store import load
from specmatrix.reports.wording import count

ORDER_FILE: Final = Path(__file__).with_name("cells.order")
# Minimum seconds of a cell in a plan.
MIN_PLANNED: Final = 0.001


class OrderedCell(NamedTuple):
    """A line of the order: a cell's id, its seconds on one thread, and ids of faults that it finds."""

    cell: str
    seconds: float
    faults: tuple[str, ...]


def measured_seconds(source: Path | None, tier: str = "") -> dict[str, float]:
    """Seconds by id of the cells that ran: from a report, or the median of a tier's newest runs in a history folder;
    empty for None. ReportError if it cannot be read."""
    if source is None:
        return {}
    if any(source.glob(f"*{SUFFIX}")):
        return {cell: max(seconds, MIN_PLANNED) for cell, seconds in median_seconds(source, tier).items()}
    return {cell.id: max(cell.seconds, MIN_PLANNED) for cell in load(source) if cell.state not in UNJUDGED_STATES}


def stored_order(path: Path = ORDER_FILE) -> tuple[OrderedCell, ...]:
    """The stored order; empty without one. ConfigError on an invalid line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), start=1):
        if line.startswith("#"):
            continue
        try:
            cell, seconds, *faults = line.split()
            found.append(OrderedCell(cell, float(seconds), tuple(faults)))
        except ValueError:
            raise ConfigError(
                f"{path.name} line {number} is invalid: {line!r:.200}; restore it, or run `python -m tools.order`"
            ) from None
    return tuple(found)


def stored_ranks(path: Path = ORDER_FILE) -> dict[str, int]:
    """Cell id to its position in the stored order."""
    return {row.cell: place for place, row in enumerate(stored_order(path))}


def cheaper_stage(stage: str, gpus: int, path: Path = ORDER_FILE) -> CheaperStage | None:
    """Cost and known faults of the stage before `stage` on a tier of `gpus` GPUs, from the stored order; None for the
    first stage, or if `stage` is not known to find any fault on this tier."""
    if stage not in STAGES[1:]:
        return None
    less = STAGES[STAGES.index(stage) - 1]
    rows = {row.cell: row.faults for row in stored_order(path)}
    found = {
        name: {fault for cell in of_gpus(stage_cells(name), gpus) for fault in rows.get(cell.id, ())}
        for name in (less, stage)
    }
    if not found[stage]:
        return None
    cells = of_gpus(stage_cells(less), gpus)
    seconds = sum(cell.seconds for cell in cells)
    return CheaperStage(less, len(cells), round(seconds, 1), len(found[stage]), len(found[less]))


def in_order(cells: Sequence[Cell], path: Path = ORDER_FILE) -> list[Cell]:
    """The cells in the stored order, then the others as they are."""
    ranks = stored_ranks(path)
    return sorted(cells, key=lambda cell: ranks.get(cell.id, len(ranks)))


PRODUCT: Final = "product"
# Of the millions of cells of this stage, those that one command takes without a limit.
MOST: Final = 20_000
# Stage of the published checkpoints; it has no cells.
WEIGHTS: Final = "weights"
# Lists the cells that an engine has in a stage.
Listing: TypeAlias = Callable[[str], Iterable[Cell]]


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stage `speed`: ids of its cells, and selectors of those whose speed is not measured, with the reasons."""

    cells: tuple[str, ...]
    unmeasured: dict[str, str]


SPEED: Final = msgspec.yaml.decode(Path(__file__).with_name("timed.yaml").read_bytes(), type=Timed)


def select(stage: str, text: str | None = None, limit: int | None = None, listed: Listing = stage_cells) -> list[Cell]:
    """The cells of a stage that match a selector, all for None; a cell's id selects it whether or not it is in the
    stage.

    Stage `product` is every cell that the axes and constraints allow, `speed` the cells that are timed. ConfigError on
    an unknown stage, a limit below 1, an invalid selector, a combination that is not a cell, an empty selection, more
    than MOST cells without a limit, or one of several cells that a selector names and the stage does not have.
    """
    if stage not in (known := (*STAGES, PRODUCT, TIMED)):
        raise ConfigError(f"stage {shown(stage)} is unknown; it must be one of {', '.join(known)}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}")
    if text is None:
        return _chosen(stage, None, limit, listed)
    if not text.strip():
        raise ConfigError("--cells is empty, perhaps an unset shell variable; omit it to run every cell")
    if is_id(text):
        cell = Cell.from_id(text.strip())
        expect(cell)
        for kind, why in SPEED.unmeasured.items() if stage == TIMED else ():
            if parse_selector(kind)(cell):
                raise ConfigError(f"stage {TIMED!r} measures no cell with {kind}: {why}")
        return [cell]
    selector = parse_selector(text)
    cells = _chosen(stage, selector, limit, listed)
    if not cells:
        raise ConfigError(
            f"selector {shown(text)} matches no cell of stage {shown(stage)}; {_elsewhere(stage, selector, listed)}"
        )
    _check_ids(stage, selector.ids, listed)
    return cells


def base_name(header: Header) -> str:
    """The name of a report among those of a base. ReportError unless its tier and stage are known, as it is a path."""
    stages = (*STAGES, PRODUCT, TIMED, WEIGHTS)
    for what, name, known in (("tier", header.tier, [row.name for row in TIERS]), ("stage", header.stage, stages)):
        if name not in known:
            raise ReportError(f"a report of {what} {shown(name)}, which must be one of {', '.join(known)}")
    return f"{header.tier}-{header.stage}.jsonl.gz"


def _check_ids(stage: str, named: Iterable[Cell], listed: Listing) -> None:
    """ConfigError on a cell that a selector names and that is not in the stage, with the reason or a stage that has
    it."""
    for cell in sorted(lacking(stage, named, listed)):
        expect(cell)
        others = (other for other in (*STAGES, PRODUCT) if not lacking(other, (cell,), listed))
        has = next((f"--stage {other} has it" for other in others), "it runs where --cells names it alone")
        raise ConfigError(f"cell {cell.id} of the selector is not in stage {shown(stage)}; {has}")


def lacking(stage: str, cells: Iterable[Cell], listed: Listing) -> set[Cell]:
    """The given cells that are not in the stage."""
    wanted = set(cells)
    if stage == PRODUCT:
        return {cell for cell in wanted if any(rule.kind in LEFT_OUT for rule in explain(cell))}
    return wanted.difference(_listed(stage, listed)) if wanted else wanted


def of_gpus(cells: Iterable[Cell], gpus: int) -> list[Cell]:
    """The cells of a tier with `gpus` GPUs: those with one rank per GPU, or on a CPU those that need no GPU."""
    return [cell for cell in cells if (cell.ranks == gpus if gpus else not cell.gpus)]


def _chosen(stage: str, selector: Selector | None, limit: int | None, listed: Listing) -> list[Cell]:
    may = None if selector is None else selector.may
    source = all_cells(may) if stage == PRODUCT else _listed(stage, listed)
    most = MOST + 1 if limit is None else min(limit, maxsize)
    found = list(islice(filter(selector and selector.picks, source), most))
    if limit is None and len(found) > MOST:
        raise ConfigError(
            f"stage {stage!r} has more than {MOST:,} of these cells; name fewer by --cells, or give --limit"
        )
    return found


def _listed(stage: str, listed: Listing) -> Iterable[Cell]:
    """The cells of a stage other than `product`."""
    if stage == TIMED:
        return map(Cell.from_id, SPEED.cells)
    cells = list(listed(stage))
    return [*cells, *own_cells(stage, cells)]


def _elsewhere(stage: str, selector: Selector, listed: Listing) -> str:
    """A hint on where matching cells exist outside the stage."""
    if stage == PRODUCT:
        return "no possible cell matches it"
    last = STAGES[-1]
    if found := len(_chosen(last, selector, None, listed)):
        return f"--stage {last} has {count(found, 'matching cell')}"
    return f"no cell of the lock file matches it; --stage {PRODUCT} selects from all possible cells"


def is_id(text: str) -> bool:
    """Whether every part of a text is a token of cell ids."""
    return all(part in MEANINGS for part in text.strip().split("."))


def all_cells(may: Callable[[Prefix], bool] | None = None) -> Iterator[Cell]:
    """All cells that the matrix does not leave out, start by start; only starts for which `may` holds."""
    ruled_out = [c for c in CONSTRAINTS if c.kind in LEFT_OUT]
    for start, tails in starts(ruled_out, may):
        yield from (Cell._make(start + tail) for tail in tails)


def chosen_cells(
    tier: str, stage: str, cells: Sequence[str] | None, limit: int | None, listed: Listing = stage_cells
) -> list[Cell]:
    """The cells of a tier and a stage that any of the selectors `cells` picks: one GPU per rank, or one or two ranks on
    a CPU. ConfigError if there are none."""
    gpus = find_tier(tier).gpus
    picked = (select(stage, text, limit, listed) for text in cells or (None,))
    chosen = of_gpus(islice(dict.fromkeys(chain.from_iterable(picked)), limit), gpus)
    if not chosen:
        ranks = count(gpus, "rank") if gpus else "1 or 2 ranks"
        raise ConfigError(
            f"tier {shown(tier)} has none of the selected cells of stage {shown(stage)}; its cells have {ranks}"
        )
    return chosen
