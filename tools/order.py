"""`python -m tools.order KILLS.json`: writes the order in which cells run, `matrix/cover/cells.order`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.selection import ORDER_FILE, measured_seconds
from specmatrix.matrix.faults.command import select
from specmatrix.reports.schema import REFERENCE
from specmatrix.reports.store import write_text
from specmatrix.reports.wording import count

HEAD: Final = "# Cells that run first, with their seconds and the faults that they find; `python -m tools.order`\n"
# Minimum cost of a cell.
MIN_SECONDS: Final = 0.05


class KilledFault(msgspec.Struct):
    """A fault of a kill matrix: the cells that it made red."""

    id: str
    cells: tuple[str, ...]


class KillMatrix(msgspec.Struct):
    """The part of a `specmatrix faults` file that the order needs. cell_seconds: of each cell without any fault."""

    faults: tuple[KilledFault, ...]
    cell_seconds: dict[str, float]


def renew(
    source: Path, declared: Mapping[str, Sequence[str]], durations: Path | None = None, path: Path = ORDER_FILE
) -> str:
    """Write the order derived from a kill matrix; returns a summary sentence. ConfigError if no locked cell finds a
    fault.

    declared: fault to the cells that find it, for faults missing from the kill matrix. durations: a report whose
    seconds replace those of the kill matrix.
    """
    kills = msgspec.json.decode(source.read_bytes(), type=KillMatrix)
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


def declared() -> dict[str, list[str]]:
    """The faults that cells of the CPU tier find, with the cells that the catalogue names for each. Other faults are
    found by kernel laws, or on servers of the engine."""
    cells, faults = stage_cells(STAGES[-1]), [one for one in select(()) if one.cells]
    own = (fault for fault in faults if not fault.operations and fault.subject == REFERENCE)
    return {fault.id: [cell.id for cell in fault.chosen(cells)] for fault in own}


def main(words: Sequence[str] | None = None) -> int:
    """Write the order; returns the exit status."""
    parser = ArgumentParser(prog="python -m tools.order", description="Order the cells by the faults that they find.")
    parser.add_argument("kills", type=Path, metavar="KILLS.json", help="faults.json of `specmatrix faults --out`")
    parser.add_argument("--durations", type=Path, help="a report or history whose seconds replace the kill matrix's")
    asked = parser.parse_args(words)
    print(renew(asked.kills, declared(), asked.durations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
