"""Renders the kill matrix as a table that fits its terminal."""

from __future__ import annotations

from rich import box
from rich.table import Column, Table

from specmatrix.matrix.faults.kill_matrix import Kill, Matrix


def kill_table(matrix: Matrix) -> Table:
    """A row per fault with the detectors that kill it; their names take several lines where they must."""
    fault, seconds = Column("fault", no_wrap=True), Column("s", justify="right", no_wrap=True)
    found = Table(fault, "killed by", seconds, box=box.SIMPLE_HEAD, pad_edge=False)
    for kill in matrix.kills:
        found.add_row(kill.fault.id, _killers(kill), f"{kill.seconds:.1f}")
    return found


def _killers(kill: Kill) -> str:
    words = {"INFRA": "it is only INFRA", "crashed": "it only crashed", "survived": "it SURVIVED"}
    broken = ("INFRA" if kill.infra else "crash",) if kill.killed and kill.crashed else ()
    return ", ".join((*kill.killed_by, *broken)) or f"[bold red]none: {words[kill.state]}[/]"
