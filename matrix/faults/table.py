"""Renders the kill matrix as a table that fits its terminal."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from specmatrix.matrix.faults.kill_matrix import DETECTORS, Kill, Matrix

CRASH: Final = "crash"
SECONDS: Final = "s"


def kill_table(matrix: Matrix, console: Console) -> Table:
    """A row per fault and a column per detector; if that is too wide, column names are written vertically."""
    wide = Table("fault", "class", "origin", *DETECTORS, CRASH, SECONDS)
    for kill in matrix.kills:
        wide.add_row(_name(kill), kill.fault.klass, kill.fault.origin, *_marks(kill))
    if console.measure(wide, options=console.options.update(max_width=10_000)).maximum <= console.width:
        return wide
    columns = (Column("fault", overflow="fold"), Column("class", no_wrap=True, overflow="ellipsis", ratio=1))
    upright = [Column("\n".join(name), vertical="bottom") for name in (*DETECTORS, CRASH)]
    narrow = Table(*columns, *upright, SECONDS, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    for kill in matrix.kills:
        narrow.add_row(_name(kill), kill.fault.klass, *_marks(kill))
    return narrow


def _name(kill: Kill) -> str:
    return kill.fault.id if kill.killed else f"[bold red]{kill.fault.id} SURVIVED[/]"


def _marks(kill: Kill) -> list[str]:
    marks = ["x" if detector in kill.killed_by else "" for detector in DETECTORS]
    return [*marks, "x" if kill.crashed else "", f"{kill.seconds:.1f}"]
