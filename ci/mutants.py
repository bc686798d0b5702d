"""`specmatrix mutants`: a sample of small random changes, and what kills them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from specmatrix import HOME
from specmatrix.ci.planner import parse_shard
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.tiers import check_parallel, check_seed
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.order import in_order
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.faults.judges import TESTS
from specmatrix.matrix.faults.mutants import (
    JUDGED,
    PATHS,
    Mutant,
    MutantOutcome,
    equivalents,
    is_equivalent,
    named_mutants,
    red_without_mutants,
    run_mutants,
    sample_of,
)
from specmatrix.matrix.run.functions import stored_functions
from specmatrix.options import WORKERS, Json, Workers
from specmatrix.reports.atomic import check_place, write_text
from specmatrix.reports.render.console import StdoutConsole, print_text
from specmatrix.reports.render.progress import counting
from specmatrix.reports.stats.proportions import wilson
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped

MUTANTS_FILE: Final = "mutants.json"
STAGES: Final = ("smoke", "pr")
BY: Final = {
    "smoke": "smoke cells",
    "pr": "further pr cells",
    "tests": "unit tests",
    "faults": "the kill matrix",
    "": "nothing",
}
# Shares of the mutants that are not equivalent; cells judge those of the engine and its kernels only.
GOALS: Final = {"cells": 0.8, "cells, tests or the kill matrix": 0.95}


def mutants(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="mutants, as --list names them; default: a sample")
    ] = None,
    paths: Annotated[
        list[str] | None, typer.Option(help="files and folders; repeatable  [default: engine/core, engine/spec]")
    ] = None,
    sample: Annotated[int, typer.Option(help="mutants to draw")] = 200,
    seed: Annotated[int, typer.Option(help="seed of the sample, and of the cells' prompts and sampling")] = 0,
    workers: Workers = WORKERS,
    tests: Annotated[bool, typer.Option("--tests/--no-tests", help="run the unit tests too")] = True,
    shard: Annotated[str, typer.Option(metavar="N/COUNT", help="only this part of the sample")] = "1/1",
    list_: Annotated[bool, typer.Option("--list", help="only list the sample")] = False,
    out: Annotated[Path | None, typer.Option(help="also write mutants.json here")] = None,
    json_: Json = False,
) -> int:
    """Print what killed the mutants; 1 if a share is below its goal by more than chance.

    ConfigError for a bad option, ReportError if `out` cannot be written.
    """
    paths = paths or [*PATHS]
    if sample < 1:
        raise ConfigError(f"--sample must be at least 1, got {sample}")
    check_parallel("workers", workers)
    check_seed(seed)
    if tests and not (HOME / TESTS).is_dir():
        raise ConfigError(f"{HOME} is no checkout and has no unit tests; add --no-tests")
    number, total = parse_shard(shard)
    if out is not None:
        check_place(out, MUTANTS_FILE)
    drawn, known = (named_mutants(ids), len(ids)) if ids else sample_of(paths, sample, seed)
    marked, part = equivalents(), drawn[number - 1 :: total]
    changes = [one for one in part if not is_equivalent(one, marked)]
    settings = {"paths": list(ids or paths), "seed": seed, "of": known, "equivalent": len(part) - len(changes)}
    if list_:
        return _list(changes, settings, json_)
    smoke, pr = (of_gpus(in_order(stage_cells(stage)), 0) for stage in STAGES)
    found: list[MutantOutcome] = []

    def show(complete: bool) -> None:
        if json_:
            print(json.dumps(_data(found, settings)))
        else:
            _show(found, settings, tests, complete)

    try:
        with counting(len(changes), "mutant") as advance:
            for outcome in run_mutants(changes, smoke, pr, stored_functions(), seed, workers, tests):
                found.append(outcome)
                if out is not None:
                    write_text(out / MUTANTS_FILE, json.dumps(_data(found, settings), indent=1) + "\n")
                advance(outcome.id, 1, sum(not one.by for one in found))
    except Stopped as stop:
        show(complete=False)
        raise stop.saying(f"interrupted after {len(found)} of {count(len(changes), 'mutant')}") from None
    show(complete=True)
    if invalid := red_without_mutants(found, seed):
        raise ConfigError(f"red without any mutant, so that kills by it mean nothing: {'; '.join(invalid)}")
    return _status(found, tests)


def _list(mutants: Sequence[Mutant], settings: dict[str, Any], json_: bool) -> int:
    if json_:
        rows = [{"id": one.id, "within": one.within, "before": one.before, "after": one.after} for one in mutants]
        print(json.dumps(settings | {"mutants": rows}))
        return 0
    lines = (
        f"{one.id} {one.within}: {' '.join(one.before.split())} -> {' '.join(one.after.split())}" for one in mutants
    )
    print_text("\n".join(lines))
    return 0


def _data(found: Sequence[MutantOutcome], settings: dict[str, Any]) -> dict[str, Any]:
    rows = sorted(found, key=lambda one: one.id)
    return settings | {
        "total": len(rows),
        "killed": {by or "nothing": sum(one.by == by for one in rows) for by in BY},
        "mutants": msgspec.to_builtins(rows),
    }


def _killed(found: Sequence[MutantOutcome], tests: bool) -> dict[str, int]:
    """The mutants that count for each goal."""
    by_cells, by_any = GOALS
    cells = (
        {by_cells: sum(one.by in STAGES for one in found)} if all(one.id.startswith(JUDGED) for one in found) else {}
    )
    return cells | ({by_any: sum(bool(one.by) for one in found)} if tests else {})


def _status(found: Sequence[MutantOutcome], tests: bool) -> int:
    killed = _killed(found, tests)
    return int(any(wilson(number, len(found))[1] < GOALS[name] for name, number in killed.items() if found))


def _show(found: Sequence[MutantOutcome], settings: dict[str, Any], tests: bool, complete: bool) -> None:
    """Print what killed how many; shares only of a complete sample, as those that nothing kills take longest."""
    console = StdoutConsole()
    table = Table("killed by", "mutants", "by a gate", "by a crash", "by a hang")
    for by, words in BY.items():
        rows = [one for one in found if one.by == by]
        ways = [sum(one.how == how for one in rows) for how in ("crash", "hang")] if by in STAGES else []
        told = [str(len(rows) - sum(ways)), *map(str, ways)] if ways else ["", "", ""]
        if rows or by in STAGES or not by or (tests and by == "tests"):
            table.add_row(words, str(len(rows)), *told)
    console.print(table)
    print_text(
        f"{count(len(found), 'mutant')} drawn from {settings['of']:,} of {' and '.join(settings['paths'])}, seed "
        f"{settings['seed']}; {count(settings['equivalent'], 'further one')} marked as equivalent"
    )
    for name, number in _killed(found, tests).items() if found and complete else ():
        low, high = wilson(number, len(found))
        share = f"{number / len(found):.0%} ({low:.0%} to {high:.0%}, 95 % interval)"
        print(f"{name} kill {share}; the goal is {GOALS[name]:.0%}")
    for one in found:
        if not one.by:
            print(f"survived: {one.id} {one.within}, executed by {count(one.cells, 'cell')}\n{one.diff}")
