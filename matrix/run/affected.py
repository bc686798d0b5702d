"""The cells that a change of the engine touches, by the functions that they execute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from specmatrix import HOME
from specmatrix.errors import ConfigError, shown
from specmatrix.files import read_text
from specmatrix.git import commit_of, git
from specmatrix.matrix.run.executed_lines import Lines, changed_lines
from specmatrix.matrix.run.functions import FOLDERS, MODULE, ExecutedFunctions, Function, functions_of
from specmatrix.reports.wording import count

DIFF: Final = (
    "diff",
    "--relative",
    "--unified=0",
    "--no-color",
    "--no-ext-diff",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
# The share of the cells from which on it is said that nearly all execute a change.
NEARLY_ALL: Final = 0.9


class SourceChange(NamedTuple):
    """A change of sources. lines: of the changed files as they are now, by path. functions: whose body, old or new, it
    changes. elsewhere: number of changed files whose functions are not recorded."""

    lines: Lines
    functions: frozenset[Function]
    elsewhere: int


def read_change(revisions: str, root: Path = HOME) -> SourceChange:
    """The change BASE..HEAD of a checkout, or of its files as they are now since BASE. ConfigError if git knows no
    such commits, or if HEAD is not checked out."""
    base, dots, head = revisions.partition("..")
    head = head.removeprefix(".")
    old = commit_of(root, base or "HEAD")
    new = ""
    if dots:
        new = commit_of(root, head or "HEAD")
        if new != commit_of(root, "HEAD"):
            raise ConfigError(f"{shown(head)} is not checked out, so the cells would run other sources")
        if revisions.startswith(f"{base}..."):
            old = git(root, "merge-base", old, new)
    diff = git(root, *DIFF, old, *filter(None, [new]))
    now, before = changed_lines(diff), changed_lines(diff, before=True)
    functions = set()
    for path, lines in now.items():
        if _recorded(path):
            text = git(root, "show", f"{new}:./{path}") if new else read_text(root / path)
            functions |= _functions(path, text, lines)
    for path, lines in before.items():
        if _recorded(path):
            functions |= _functions(path, git(root, "show", f"{old}:./{path}"), lines)
    files = git(root, *DIFF, "--name-only", old, *filter(None, [new])).splitlines()
    return SourceChange(now, frozenset(functions), sum(not _recorded(path) for path in files))


def affected_ranks(
    change: SourceChange, executed: ExecutedFunctions, cells: Iterable[str], ranks: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """The place of each cell of `cells` that runs early, and how many of them execute the change.

    Those come first whose functions the change touches; a function that few cells execute counts for more. ranks: the
    places without a change, which decide between equals and order the others.
    """
    weights: dict[str, float] = {}
    for function in change.functions:
        found = executed.executing(function)
        for cell in found:
            weights[cell] = weights.get(cell, 0.0) + 1 / len(found)
    last = len(ranks)
    early = [cell for cell in cells if cell in weights or cell in ranks]
    early.sort(key=lambda cell: (-weights.get(cell, 0.0), ranks.get(cell, last)))
    return {cell: place for place, cell in enumerate(early)}, sum(cell in weights for cell in early)


def sentence(change: SourceChange, touched: int, total: int) -> str:
    """What a run says of the change that orders its cells."""
    where, kept = f"in {' and '.join(FOLDERS)}", "so the default order is kept"
    files = count(change.elsewhere, f"{'other ' if change.functions else ''}changed file")
    rest = f"; {files} {'was' if change.elsewhere == 1 else 'were'} ignored" if change.elsewhere else ""
    if not change.functions:
        return f"the change touches no function {where}, {kept}{rest}"
    if not touched:
        found = f"none of {count(total, 'cell')} is known to execute them, {kept}"
    elif touched == total:
        found = "the only cell executes them" if total == 1 else f"all {count(total, 'cell')} execute them"
    elif touched >= NEARLY_ALL * total:
        found = f"nearly all cells ({touched:,} of {total:,}) execute them"
    else:
        found = f"{touched:,} of {count(total, 'cell')} execute them and run first"
    return f"{count(len(change.functions), 'changed function')} {where}: {found}{rest}"


def _recorded(path: str) -> bool:
    return path.endswith(".py") and path.split("/")[0] in FOLDERS


def _functions(path: str, text: str, lines: Iterable[int]) -> set[Function]:
    try:
        named = functions_of(text)
    except SyntaxError as error:
        raise ConfigError(f"{path} line {error.lineno} is not Python: {error.msg}") from None
    return {(path, named.get(line, MODULE)) for line in lines}
