"""`specmatrix faults`: plants every fault and prints which gates kill it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.matrix.cells.tiers import check_parallel, check_seed, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import in_order, of_gpus
from specmatrix.matrix.faults.fault import Fault, all_faults
from specmatrix.matrix.faults.kill_matrix import Kill, Matrix, kill_matrix
from specmatrix.options import WORKERS
from specmatrix.reports.render.console import counting, print_answer, table_console
from specmatrix.reports.store import write_text
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped


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


FAULTS_FILE: Final = "faults.json"
NEVER_ALONE: Final = "[red]kills no fault alone[/]"


def faults(
    names: list[str] | None = None,
    stage: str = "pr",
    seed: int = 0,
    workers: int = WORKERS,
    out: Path | None = None,
    verbose: bool = False,
    json_: bool = False,
    tier: str = "cpu",
    first: int | None = None,
    list_: bool = False,
    _plugin: list[Path] | None = None,
) -> int:
    """Print the kill matrix of a tier's faults (or of the faults `names`), as a table or JSON; return the exit status.

    With `out`, also keep it up to date as JSON in `out`/faults.json; ReportError if that cannot be written. On Stopped,
    print what is complete and raise it again with a message that says how much that is.

    1 if a fault survives or only crashes, or if a cell fails without any fault. first: as in `kill_matrix`. ConfigError
    for an unknown stage or id, more workers than this machine should start, and a fault that no longer
    applies.
    """
    wanted = names or []
    if list_:
        return list_faults(wanted, tier, json_)
    visible_gpus(tier)
    chosen = select(wanted, tier)
    check_parallel("workers", workers)
    check_seed(seed)
    so_far = Matrix((), (), tuple(fault.id for fault in chosen))

    def keep(matrix: Matrix) -> None:
        nonlocal so_far
        so_far = matrix
        if out is not None:
            write_text(out / FAULTS_FILE, json.dumps(matrix.as_dict(), indent=1) + "\n")

    def show(matrix: Matrix) -> None:
        if json_:
            print(json.dumps(matrix.as_dict()))
        else:
            whole = len(matrix.kills) == len(select((), tier))
            _show(matrix, table_console(), whole=whole, verbose=verbose)

    try:
        cells = of_gpus(in_order(stage_cells(stage)), find_tier(tier).gpus) if first else stage_cells(stage)
        with counting(len(chosen) + workers, "trial") as advance:
            matrix = kill_matrix(chosen, cells, seed, workers, lambda name: advance(name, 1), keep, tier, first)
    except Stopped as stop:
        show(so_far)
        raise stop.saying(f"interrupted after {len(so_far.kills)} of {count(len(chosen), 'fault')}") from None
    show(matrix)
    return 0 if matrix.ok else 1


def select(only: Sequence[str], tier: str = "cpu", more: Sequence[Fault] = ()) -> list[Fault]:
    """The faults of a tier with these ids, each once, or all if none are given. more: faults besides the catalogue's,
    by id only. ConfigError for an unknown id."""
    known = {fault.id: fault for fault in (*all_faults(), *(more if only else ())) if fault.runs_on(tier)}
    for name in only:
        if name not in known:
            close = nearest(name, known)
            listing = "specmatrix faults --list" + (f" --tier {tier}" if tier != "cpu" else "")
            hint = f"the closest is {close}" if close else f"`{listing}` names all {len(select((), tier))}"
            raise ConfigError(f"fault {shown(name)} is unknown in tier {tier}; {hint}")
    return [known[name] for name in dict.fromkeys(only)] if only else list(known.values())


def list_faults(only: Sequence[str], tier: str, json_: bool) -> int:
    """List a tier's faults, a line each or as JSON, without planting any. ConfigError for an unknown id."""
    find_tier(tier)
    chosen = select(only, tier)
    rows = [{name: getattr(fault, name) for name in ("id", "category", "origin", "within", "why")} for fault in chosen]
    return print_answer(rows, "\n".join("{id}: {why} ({category}, {origin})".format(**row) for row in rows), json_)


def _show(matrix: Matrix, console: Console, whole: bool, verbose: bool) -> None:
    if matrix.kills:
        console.print(kill_table(matrix))
    others = [f"{number} {state}" for state, number in sorted(matrix.states.items()) if state != "killed"]
    killed = f"{matrix.states['killed']} of {count(len(matrix.kills), 'fault')} killed"
    console.print("; ".join([killed, *([f"[bold red]{', '.join(others)}[/]"] if others else [])]))
    if matrix.missing:
        console.print(f"[bold red]not run: {count(len(matrix.missing), 'fault')}[/], from {matrix.missing[0]} on")
    for gate, alone in matrix.sole.items():
        if alone or whole:
            console.print(f"{gate}: {'only killer of ' + ', '.join(alone) if alone else NEVER_ALONE}")
    for kill in matrix.kills:
        if kill.unexpected:
            words = f"killed by {', '.join(kill.killed_by)}, expected {', '.join(kill.fault.expected)}"
            console.print(f"{kill.fault.id}: {words}")
        if kill.crashed:
            console.print(f"{kill.fault.id} crashed: {kill.crashed}", markup=False)
        if verbose:
            for gate, message in kill.messages.items():
                console.print(f"{kill.fault.id}: {gate}: {message}", markup=False)
    for line in matrix.unfaulted_red:
        console.print(f"red without any fault: {line}", markup=False)
