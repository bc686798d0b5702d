"""Which changed lines only failing cells execute: where to look first."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import FrameType
from typing import Any, Final

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell

Lines = dict[str, set[int]]
_FILE: Final = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def changed_lines(diff: str) -> Lines:
    """The lines of Python files that a unified diff without context adds or changes, by path from the root."""
    found: Lines = {}
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE):
        name = _FILE.search(part)
        if name is not None and name[1].endswith(".py"):
            for hunk in _HUNK.finditer(part):
                first, number = int(hunk[1]), int(hunk[2] or 1)
                found.setdefault(name[1], set()).update(range(first, first + number))
    return {path: lines for path, lines in found.items() if lines}


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
