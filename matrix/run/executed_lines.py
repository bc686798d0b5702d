"""Which changed lines only failing cells execute: where to look first."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import ne
from types import FrameType
from typing import Any, Final

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.reports.schema import CellResult
from specmatrix.reports.wording import count

Lines = dict[str, set[int]]
# Failing cells, and passing ones beside their neighbours, that run again to tell lines apart.
MAX_TRACED: Final = 4
# Cells that run for it where none passed.
MAX_BESIDE: Final = 3
_FILES: Final = re.compile(r"^--- (?:a/)?(\S+).*\n\+\+\+ (?:b/)?(\S+)", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def changed_lines(diff: str, before: bool = False) -> Lines:
    """The lines of Python files that a unified diff without context adds or changes, by path from the root; of a pure
    deletion the line in front of it.

    before: those that it removes or changes instead, as the old files count them.
    """
    found: Lines = {}
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE):
        names = _FILES.search(part)
        name = "" if names is None else names[1 if before else 2]
        if name.endswith(".py"):
            for hunk in _HUNK.finditer(part):
                first, number = hunk.group(1, 2) if before else hunk.group(3, 4)
                least = 0 if before else 1
                found.setdefault(name, set()).update(range(int(first), int(first) + max(least, int(number or 1))))
    return {path: lines - {0} for path, lines in found.items() if lines - {0}}


def suspects(
    red: Sequence[CellResult], cells: Sequence[CellResult], changed: Lines, tier: str, seed: int
) -> tuple[Lines, list[str], list[str]]:
    """The changed lines that cells of `red` execute and no passing cell of `cells` does; the failing and the passing
    cells that ran again to tell, a few of each, those among them that differ least. Without some of each there is none.

    Cells of several ranks run in other processes, and one that crashed may crash this one: neither runs again.
    """
    failing = [cell for cell in red if cell.state == "FAIL" and _traceable(cell)][:MAX_TRACED]
    passing = [cell for cell in cells if cell.state == "PASS" and _traceable(cell)]
    near = [min(passing, key=lambda other: _distance(cell, other)).id for cell in failing if passing]
    names, green = [cell.id for cell in failing], [*dict.fromkeys([*near, *(c.id for c in passing[:MAX_TRACED])])]
    return (only_red(names, green, changed, tier, seed) if names and green and changed else {}), names, green


def beside(red: Sequence[CellResult], cells: Sequence[CellResult], chosen: Iterable[Cell]) -> list[Cell]:
    """A few of the `chosen` cells that did not run, nearest to the first failing one, which `suspects` needs where none
    of `cells` passed."""
    failing = [Cell.of(cell.axes) for cell in red if cell.state == "FAIL" and _traceable(cell)]
    if not failing or any(cell.state == "PASS" and _traceable(cell) for cell in cells):
        return []
    ran = {cell.id for cell in cells}
    left = [cell for cell in chosen if cell.id not in ran and cell.tp == "1" and expect(cell) != "refused"]
    return sorted(left, key=lambda cell: sum(map(ne, cell, failing[0])))[:MAX_BESIDE]


def no_suspect(red: int, failing: int, passing: int, changed: Lines) -> str:
    """Why `suspects` found no line, in a sentence. failing, passing: how many cells it chose. red: of how many."""
    if not changed:
        reason = "the change has none in a Python file"
    elif not failing:
        reason = f"only failed cells of one rank run again, and none of {count(red, 'red cell')} is one"
    elif not passing:
        reason = "no cell passed that they could be compared with"
    else:
        again = f"{failing} failing and {count(passing, 'passing cell')} ran again, traced"
        return f"no changed line is executed by failing cells only: {again}"
    return f"which of the changed lines only failing cells execute is not known: {reason}"


def _distance(cell: CellResult, other: CellResult) -> int:
    """The number of axes in which two cells differ."""
    return sum(map(ne, cell.axes.values(), other.axes.values()))


def _traceable(cell: CellResult) -> bool:
    return cell.axes.get("tp", "1") == "1" and cell.expect != "refused"


def only_red(red: Iterable[str], green: Iterable[str], changed: Mapping[str, set[int]], tier: str, seed: int) -> Lines:
    """Those of the changed lines that cells of `red` execute and none of `green`, by running each once in this process,
    traced."""
    # In this order, as what only the first run of a process executes proves nothing.
    passing, failing = (executed(cells, changed, tier, seed) for cells in (green, red))
    left = {path: changed[path] & failing[path] - passing[path] for path in changed}
    return {path: lines for path, lines in left.items() if lines}


def executed(cells: Iterable[str], files: Iterable[str], tier: str, seed: int) -> Lines:
    """The lines of `files` that the cells execute on the reference engine, baselines included."""
    from specmatrix.matrix.run.runner import reference_runner

    found: Lines = {path: set() for path in files}
    wanted = {os.path.realpath(HOME / path): lines for path, lines in found.items()}

    @cache
    def lines_of(file: str) -> set[int] | None:
        return wanted.get(os.path.realpath(file))

    def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401  # as Python declares it
        lines = lines_of(frame.f_code.co_filename)
        if lines is None:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    runner = reference_runner(seed, tier)
    before = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        for cell in cells:
            runner.run_cell(Cell.from_id(cell))
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
        runner.shut_down()
    return found


def ranges(lines: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring lines, first and last."""
    rest = sorted(lines)
    while rest:
        size = next((n for n in range(1, len(rest)) if rest[n] != rest[0] + n), len(rest))
        yield rest[0], rest[size - 1]
        rest = rest[size:]
