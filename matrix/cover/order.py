"""The order in which cells run: those first that find most faults per second, as a kill matrix shows.

`cells.order` next to the lock file has a line for each of them: its id, its measured seconds, and the faults that it is
known to find. Cells that it does not name follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from specmatrix.errors import ConfigError, shown
from specmatrix.files import read_text
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.reports.atomic import write_text
from specmatrix.reports.history import SUFFIX, median_seconds
from specmatrix.reports.schema import UNJUDGED_STATES, CheaperStage
from specmatrix.reports.store import load
from specmatrix.reports.wording import count

ORDER_FILE: Final = Path(__file__).with_name("cells.order")
HEAD: Final = "# Cells that run first, with their seconds and the faults that they find; `specmatrix lock --order`\n"
# Minimum cost of a cell.
MIN_SECONDS: Final = 0.05
# Minimum seconds of a cell in a plan.
MIN_PLANNED: Final = 0.001


NONE: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class OrderedCell(NamedTuple):
    """A line of the order: a cell's id, its seconds on one thread, and ids of faults that it finds."""

    cell: str
    seconds: float
    faults: tuple[str, ...]


class KilledFault(msgspec.Struct):
    """A fault of a kill matrix: the cells that it made red."""

    id: str
    cells: tuple[str, ...]


class KillMatrix(msgspec.Struct):
    """The part of a `specmatrix faults` file that the order needs. cell_seconds: of each cell without any fault."""

    faults: tuple[KilledFault, ...]
    cell_seconds: dict[str, float]


def read_kills(path: Path) -> KillMatrix:
    """Read a kill matrix. One-sentence ConfigError if the file holds none."""
    try:
        return msgspec.json.decode(read_text(path), type=KillMatrix)
    except OSError as error:
        raise ConfigError(f"cannot read the kill matrix {shown(str(path))}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown(str(path))} is no kill matrix of `specmatrix faults --out`: {error}") from None


def renew(
    source: Path, declared: Mapping[str, Sequence[str]] = NONE, durations: Path | None = None, path: Path = ORDER_FILE
) -> str:
    """Write the order derived from a kill matrix; returns a summary sentence. ConfigError if no locked cell finds a
    fault.

    declared: fault to the cells that find it, for faults missing from the kill matrix. durations: a report whose
    seconds replace those of the kill matrix.
    """
    kills = read_kills(source)
    locked = {cell.id for cell in stage_cells(STAGES[-1])}
    given = {**declared, **{fault.id: fault.cells for fault in kills.faults}}
    known = {fault: found for fault, cells in given.items() if (found := locked.intersection(cells))}
    measured = {**kills.cell_seconds, **measured_seconds(durations)}
    chosen = greedy(known, measured)
    if not chosen:
        raise ConfigError(f"{source} has no fault that a locked cell finds, so it gives no order")
    lines = [HEAD]
    for cell in chosen:
        faults = (fault for fault, cells in known.items() if cell in cells)
        seconds = measured.get(cell, Cell.from_id(cell).seconds)
        lines.append(" ".join((cell, f"{seconds:.2f}", *faults)) + "\n")
    write_text(path, "".join(lines))
    return f"{path.name}: {count(len(chosen), 'cell')} find {len(known):,} of {count(len(given), 'fault')}"


def greedy(kills: Mapping[str, set[str]], seconds: Mapping[str, float]) -> list[str]:
    """Cells that together find every fault, each chosen for the most new faults per second.

    kills: fault to the cells that find it. seconds: by cell, its estimate by default. The engine start is part of each
    cell: on a CPU it takes 0.03 to 0.17 s, and cells of one start rarely follow each other.
    """
    left = dict(kills)
    chosen: list[str] = []
    names = sorted({name for cells in kills.values() for name in cells})
    costs = {name: max(seconds.get(name, Cell.from_id(name).seconds), MIN_SECONDS) for name in names}
    while left:
        best = max(names, key=lambda name: sum(name in cells for cells in left.values()) / costs[name])
        chosen.append(best)
        left = {fault: cells for fault, cells in left.items() if best not in cells}
    return chosen


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
                f"{path.name} line {number} is invalid: {line!r:.200}; restore it, or run `specmatrix lock --order`"
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
