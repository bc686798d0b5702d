"""The reviewed resolution of every start: each field's effective value and reason, or the refusal's message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeAlias

from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.golden.outcomes import AS_ASKED, REFUSED, Groups, start_outcomes, where_of

GOLDEN_FILE: Final = Path(__file__).with_name("resolved.yaml")
REQUEST_DEFAULTS: Final = {axis.name: axis.default for axis in AXES if axis.scope == "request"}
# Fields that GPU tiers set and the CPU tier leaves at auto.
PLACED: Final = ("device", "dtype")
# Field -> outcomes, each with a predicate for its starts.
Golden: TypeAlias = Mapping[str, tuple[tuple[str, tuple[Callable[[Cell], bool], ...]], ...]]


def start_id(cell: Cell) -> str:
    """The id of a cell's start: the cell with default request values."""
    return cell._replace(**REQUEST_DEFAULTS).id


def compiled(groups: Groups) -> Golden:
    """The golden file's groups with compiled predicates."""
    return {
        name: tuple((outcome, tuple(map(where_of, wheres))) for outcome, wheres in found.items())
        for name, found in groups.items()
    }


def expected(golden: Golden, cell: Cell, gpu: bool = False) -> dict[str, str]:
    """The reviewed outcomes of a cell's start: every field's, or `refused` alone; unreviewed fields are missing. GPU
    tiers set device and precision, which are therefore "as asked" there."""
    found = {name: outcome for name, rows in golden.items() for outcome, wheres in rows if any(w(cell) for w in wheres)}
    if REFUSED in found:
        return {REFUSED: next(outcome for outcome, wheres in golden[REFUSED] if any(w(cell) for w in wheres))}
    return found | (dict.fromkeys(PLACED, AS_ASKED) if gpu and found else {})


@cache
def golden_table(path: Path = GOLDEN_FILE) -> Golden:
    """The reviewed groups; empty if the file is missing, so that every start is NOT MEASURED."""
    # PyYAML is slow to import, and collection does not need it.
    from specmatrix.reports.yaml_text import parse_yaml

    return compiled(parse_yaml(path.read_text(encoding="utf-8"), own=True)) if path.is_file() else {}


def blessed_table(cells: Iterable[Cell]) -> Golden:
    """What the golden file would say of these cells if it were regenerated from this engine."""
    rows: dict[str, list[tuple[str, tuple[Callable[[Cell], bool], ...]]]] = {}
    for start in {cell._replace(**REQUEST_DEFAULTS) for cell in cells}:
        for name, outcome in start_outcomes(start).items():
            rows.setdefault(name, []).append((outcome, (partial(_starts, start),)))
    return {name: tuple(found) for name, found in rows.items()}


def _starts(start: Cell, cell: Cell) -> bool:
    return cell._replace(**REQUEST_DEFAULTS) == start
