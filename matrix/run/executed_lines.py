"""Which changed lines only failing cells execute: where to look first."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from operator import ne
from pathlib import Path
from types import FrameType
from typing import Any, Final

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.git import commit_of, git
from specmatrix.matrix.cells.cell import Cell
from specmatrix.reports.schema import CellResult

Lines = dict[str, set[int]]
# Maximum number of failing cells, and of passing ones besides their nearest neighbours, that are traced.
MAX_TRACED: Final = 4
# Names of a main branch, the remote's first; the last is of a checkout without any.
MAIN: Final = ("origin/HEAD", "origin/main", "main", "master", "HEAD")
_FILES: Final = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
# Options for a diff that `changed_lines` can read, whatever the user's git settings.
_DIFF: Final = (
    *("diff", "--relative", "--unified=0", "--no-color", "--no-ext-diff", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


def own_change(root: Path = HOME) -> Lines:
    """The lines of a checkout that differ from where its branch left the main one; none where there is no git."""
    for main in MAIN:
        with suppress(ConfigError):
            return changed_lines(git(root, *_DIFF, git(root, "merge-base", "HEAD", commit_of(root, main))))
    return {}


def changed_lines(diff: str) -> Lines:
    """The lines of Python files that a unified diff without context adds or changes, by path from the root; for a pure
    deletion the line before it."""
    found: Lines = {}
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE):
        names = _FILES.search(part)
        if names is not None and names[1].endswith(".py"):
            for hunk in _HUNK.finditer(part):
                first, number = int(hunk[1]), int(hunk[2] or 1)
                found.setdefault(names[1], set()).update(range(first, first + max(1, number)))
    return {path: lines - {0} for path, lines in found.items() if lines - {0}}


def suspects(
    red: Sequence[CellResult], cells: Sequence[CellResult], changed: Lines, tier: str, seed: int
) -> tuple[Lines, list[str], list[str]]:
    """(changed lines executed by cells of `red` and by no passing cell of `cells`, failing cells traced, passing cells
    traced): a few of each, the passing ones nearest to them included. No lines if either is empty.

    Cells of several ranks run in other processes, and one that crashed may crash this one: neither runs again.
    """
    failing = [cell for cell in red if cell.state == "FAIL" and _traceable(cell)][:MAX_TRACED]
    passing = [cell for cell in cells if cell.state == "PASS" and _traceable(cell)]
    near = [min(passing, key=lambda other: _distance(cell, other)).id for cell in failing if passing]
    names, green = [cell.id for cell in failing], [*dict.fromkeys([*near, *(c.id for c in passing[:MAX_TRACED])])]
    return (only_red(names, green, changed, tier, seed) if names and green and changed else {}), names, green


def _distance(cell: CellResult, other: CellResult) -> int:
    """The number of axes in which two cells differ."""
    return sum(map(ne, cell.axes.values(), other.axes.values()))


def _traceable(cell: CellResult) -> bool:
    return cell.axes.get("tp", "1") == "1" and cell.expect != "refused"


def only_red(red: Iterable[str], green: Iterable[str], changed: Mapping[str, set[int]], tier: str, seed: int) -> Lines:
    """The changed lines that cells of `red` execute and none of `green`; traces each cell once in this process."""
    # Passing cells first, as lines that run only once per process prove nothing.
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
