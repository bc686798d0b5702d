"""Which cells execute which functions of the engine, so that those that a change touches can run first.

`cells.functions` beside the lock file has a line for each set of cells and file: the set as a bit mask over the cells
of the first line, the file, and the functions that exactly these cells execute. Functions outlive shifted lines.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.extras import require
from specmatrix.files import parsed, read_text
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import LOCK_FILE
from specmatrix.reports.atomic import write_text
from specmatrix.reports.wording import count

FUNCTIONS_FILE: Final = LOCK_FILE.with_name("cells.functions")
# The folders whose functions are recorded.
FOLDERS: Final = ("engine", "kernels")
# Code outside of functions runs on import, whatever the cell.
MODULE: Final = ""
EVERY: Final = "every"
TIER: Final = "cpu"
# Cells of one task of a worker process.
SHARE: Final = 8

Function = tuple[str, str]


def functions_of(text: str) -> dict[int, str]:
    """The qualified name of the innermost function whose body holds a line, by line of a source text.

    A function's own header and decorators belong to what surrounds it.
    """
    found: dict[int, str] = {}

    def enter(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    last = child.end_lineno or child.lineno
                    found.update(dict.fromkeys(range(child.body[0].lineno, last + 1), name))
            enter(child, name)

    enter(parsed(text), "")
    return found


def executed_functions(cells: Sequence[Cell]) -> dict[str, list[Function]]:
    """The functions that each cell executes on the reference engine, by its id, each cell run as if it were alone."""
    import torch
    from coverage import Coverage

    from specmatrix.matrix.run.runner import reference_runner

    torch.set_num_threads(1)
    measured = Coverage(data_file=None, config_file=False, include=[f"{(HOME / name).resolve()}/*" for name in FOLDERS])
    # What only the first run of a process executes, such as building tables, belongs to no cell.
    for number, cell in enumerate((*cells[:1], *cells)):
        _forget()
        runner = reference_runner(0, TIER)
        if number:
            measured.start()
            measured.switch_context(cell.id)
        try:
            runner.run_cell(cell)
        finally:
            measured.stop()
            runner.shut_down()
    data = measured.get_data()
    found: dict[str, list[Function]] = {cell.id: [] for cell in cells}
    for file in sorted(data.measured_files()):
        path, named = Path(file), functions_of(Path(file).read_text(encoding="utf-8"))
        seen: dict[str, set[str]] = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                seen.setdefault(context, set()).add(named.get(line, MODULE))
        place = str(path.relative_to(HOME.resolve()))
        for name, own in found.items():
            own += [(place, function) for function in sorted(seen.get(name, set()) - {MODULE})]
    return found


def _forget() -> None:
    """Empty the caches of functions, which would hide what a cell executes from all cells but the first."""
    modules = [module for name, module in sys.modules.items() if name.startswith("specmatrix.")]
    for owner in (
        *modules,
        *(value for module in modules for value in vars(module).values() if isinstance(value, type)),
    ):
        for each in [*vars(owner).values()]:
            if type(each) is functools._lru_cache_wrapper:
                each.cache_clear()


def record(
    cells: Sequence[Cell], workers: int, ran: Callable[[int], None] = lambda cells: None, path: Path = FUNCTIONS_FILE
) -> str:
    """Run the cells and store what they execute; what is stored, in a sentence. ConfigError without coverage.py.

    Cells of several ranks execute their engine in other processes, and count as executing every function.
    ran: called with the number of cells that ended.
    """
    require("coverage")
    alone = [cell for cell in cells if cell.ranks == 1]
    shares = [alone[first : first + SHARE] for first in range(0, len(alone), SHARE)]
    executed: dict[str, list[Function]] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for part in pool.map(executed_functions, shares):
            executed |= part
            ran(len(part))
    names = [cell.id for cell in cells]
    masks: dict[Function, int] = {}
    for cell, found in executed.items():
        for function in found:
            masks[function] = masks.get(function, 0) | 1 << names.index(cell)
    ranked = sum(1 << place for place, cell in enumerate(cells) if cell.ranks > 1)
    every = (1 << len(names)) - 1
    lines: dict[tuple[str, str], list[str]] = {}
    for (file, name), mask in sorted(masks.items()):
        mask |= ranked
        lines.setdefault((EVERY if mask == every else f"{mask:x}", file), []).append(name)
    body = "".join(" ".join((*head, *found)) + "\n" for head, found in sorted(lines.items(), key=lambda one: one[0][1]))
    write_text(path, " ".join(names) + "\n" + body)
    verb = "executes" if len(names) == 1 else "execute"
    return f"{path.name}: {count(len(names), 'cell')} {verb} {count(len(masks), 'function')}"


class ExecutedFunctions:
    """The stored functions. cells: those whose functions are known, in the stored order."""

    def __init__(self, cells: Sequence[str], masks: Mapping[Function, int]) -> None:
        self.cells, self._masks = tuple(cells), masks

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions that a cell executes."""
        return tuple(self._masks)

    def executing(self, function: Function) -> set[str]:
        """The cells that execute a function; of MODULE, those that execute any of its file. Empty if it is unknown."""
        path, name = function
        if name == MODULE:
            return set().union(*(self._cells(mask) for (file, _), mask in self._masks.items() if file == path))
        return self._cells(self._masks.get(function, 0))

    def _cells(self, mask: int) -> set[str]:
        return {cell for place, cell in enumerate(self.cells) if mask >> place & 1}


def stored_functions(path: Path = FUNCTIONS_FILE) -> ExecutedFunctions:
    """The stored functions. ConfigError without a valid file."""
    try:
        head, *lines = read_text(path).splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path.name}: {error}; restore it, or run `specmatrix lock --functions`"
        ) from None
    cells = head.split()
    masks: dict[Function, int] = {}
    for number, line in enumerate(lines, start=2):
        try:
            mask, file, *names = line.split()
            value = (1 << len(cells)) - 1 if mask == EVERY else int(mask, 16)
        except ValueError:
            raise ConfigError(
                f"{path.name} line {number} is invalid: {line!r:.200}; restore it, or run `specmatrix lock --functions`"
            ) from None
        masks.update({(file, name): value for name in names})
    return ExecutedFunctions(cells, masks)
