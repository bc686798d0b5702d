"""`specmatrix run`: cells over worker processes, and the report of what they found."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from specmatrix.ci.cell_runs import CellRuns, cell_runs, packed_runs
from specmatrix.ci.commands.tier_run import TierRun, alone, divided, of_shard, tier_names, write_reports
from specmatrix.ci.packing import Demand
from specmatrix.ci.planner import Host, read_hosts
from specmatrix.ci.run_options import WHOLE, RunOptions
from specmatrix.ci.variants import decided
from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.tiers import check_parallel, check_seed, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cells.timed import TIMED
from specmatrix.matrix.cli.options import WORKERS
from specmatrix.matrix.cover.order import cheaper_stage, measured_seconds
from specmatrix.matrix.cover.selection import of_gpus, select
from specmatrix.matrix.gates.registry import GATES, applied_gates
from specmatrix.matrix.run.affected import SourceChange, affected_ranks, read_change, sentence
from specmatrix.matrix.run.executed_lines import beside, no_suspect, ranges, suspects
from specmatrix.matrix.run.functions import stored_functions
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.waivers import load_waivers
from specmatrix.matrix.subjects.protocol import Subject
from specmatrix.matrix.subjects.registry import foreign_subject
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.reports.atomic import check_place
from specmatrix.reports.render.console import StdoutConsole
from specmatrix.reports.render.explain import write_explained
from specmatrix.reports.render.junit import write_junit
from specmatrix.reports.render.run import RunView, write_run
from specmatrix.reports.render.terminal import print_run
from specmatrix.reports.schema import (
    PAGE_FILE,
    REFERENCE,
    REPORT_FILE,
    CellResult,
    Header,
    ShardRecord,
    WaiverRule,
    is_red,
)
from specmatrix.reports.stats.shift import LEAST_VALUES
from specmatrix.reports.store import load
from specmatrix.reports.wording import count

MOST_STARTS: Final = 100


def run(options: RunOptions) -> int:
    """Run, report, and return the exit status: 0 if nothing is red. ConfigError or ReportError on a bad option."""
    if len(names := tier_names(options.tier)) > 1:
        check_one_tier(options)
        return run_tiers(names, options)
    check_decide(options)
    if options.junit is not None:
        check_place(options.junit.parent, options.junit.name)
    engine, rules = foreign_subject(options.subject, options.endpoint), load_waivers(options.waivers)
    gpus, only = find_tier(options.tier).gpus, options.only
    there, at_once = places(options, timed_workers(options))
    seconds, change = measured_seconds(options.durations, options.tier), change_of(options)
    with cell_runs(options, at_once, seconds, rules) as runs:
        chosen = chosen_by(options) if options.rerun_failed is None else failed_cells(options.rerun_failed, options)
        check_seed(options.seed)
        part, chosen = of_shard(chosen, seconds, options.shard, gpus, there)
        verify_cells(chosen)
        runs = runs if change is None else _affected_first(runs, change, chosen)
        parts = (part, engine, options.cells, options.limit, options.rerun_failed)
        less = cheaper_stage(options.stage, gpus) if all(one is None for one in parts) else None
        header = replace(header_of(runs, engine, rules, part), cheaper=less, decided=options.decide)
        header = header if only is None else replace(header, data_hash=hash_of(only, chosen, options, header.data_hash))
        traced = runs.explained("every" if len(chosen) == 1 else "red") if options.explain else runs
        records = traced(chosen)
        if options.decide:
            records = _with_decided(runs, records)
        tier_run = TierRun(options.out, header, chosen)
        view = write_run(load(*write_reports([tier_run], alone(records), options.fail_fast)))
        show_run(view, options.out, write_explained(view, options.out), options.json, options.junit)
        if change is not None and not options.json and not gpus:
            show_suspects(view, change, options.tier, options.seed, chosen, runs)
    return int(view.verdict != "green")


def check_one_tier(options: RunOptions) -> None:
    """ConfigError if one of the options that need one tier is given with several."""
    alone = {
        f"--stage {TIMED}": options.stage == TIMED,
        "--limit": options.limit,
        "--json": options.json,
        "--rerun-failed": options.rerun_failed,
        "--explain": options.explain,
        "--decide": options.decide,
        "--requests": options.only,
        "--junit": options.junit,
        "--affected": options.affected,
        "--on": options.on,
    }
    if given := next((name for name, value in alone.items() if value), None):
        raise ConfigError(f"{given} takes one tier, got {shown(options.tier)}")


def run_tiers(names: Sequence[str], options: RunOptions) -> int:
    """As `run`, of several tiers at the same time, whose reports are in folders of `out` by the tiers' names."""
    engine, rules = foreign_subject(options.subject, options.endpoint), load_waivers(options.waivers)
    check_seed(options.seed)
    tiers = {name: dataclasses.replace(options, tier=name) for name in names}
    for own in tiers.values():
        there, at_once = places(own, own.workers)
    demands = {
        name: Demand(chosen_by(own), find_tier(name).gpus, measured_seconds(options.durations, name))
        for name, own in tiers.items()
    }
    parts, started = list[TierRun](), list[CellRuns]()
    with ExitStack() as stack:
        for name, (part, cells) in divided(demands, options.shard, there).items():
            runs = cell_runs(tiers[name], at_once, demands[name].durations, rules)
            started.append(stack.enter_context(runs))
            verify_cells(cells)
            parts.append(TierRun(options.out / name, header_of(started[-1], engine, rules, part), cells))
        paths = write_reports(parts, packed_runs(started, [part.cells for part in parts]), options.fail_fast)
    views = [write_run(load(path)) for path in paths]
    for one, view in zip(parts, views, strict=True):
        print(f"tier {one.header.tier}:")
        show_run(view, one.out, (), json_=False)
    return int(any(view.verdict != "green" for view in views))


def header_of(
    runs: CellRuns, engine: Subject | None, rules: tuple[WaiverRule, ...], part: ShardRecord | None
) -> Header:
    """The header of a run's report."""
    gates = GATES if engine is None else applied_gates(engine.profile).gates
    asked = runs.job.options
    header = run_header(asked.tier, asked.stage, asked.seed, gates, engine, rules)
    host = header.host if runs.cluster is None else runs.cluster.host
    return replace(header, fault=asked.fault or "", shard=part, dirty=header.dirty or bool(asked.fault), host=host)


def check_decide(options: RunOptions) -> None:
    """ConfigError if there may be no green cells to compare with."""
    part, only = options.shard != WHOLE, options.only
    if options.decide and (options.fail_fast or part or only is not None):
        other = "--fail-fast" if options.fail_fast else "--shard" if part else only and only.options.split()[0]
        raise ConfigError(f"--decide compares red cells with green ones; it cannot be combined with {other}")


def change_of(options: RunOptions) -> SourceChange | None:
    """The change whose cells run first, if any. ConfigError if the cells run other sources."""
    if options.subject == REFERENCE:
        require("torch")
    if options.affected is not None and (options.fault or options.subject != REFERENCE):
        option = f"--fault {options.fault}" if options.fault else f"--subject {options.subject}"
        raise ConfigError(
            f"--affected orders cells by a change of this engine's sources; it cannot be combined with {option}"
        )
    try:
        return None if options.affected is None else read_change(options.affected)
    except ConfigError as error:
        raise ConfigError(f"--affected: {error}") from error


def _affected_first(runs: CellRuns, change: SourceChange, cells: Sequence[Cell]) -> CellRuns:
    """The runs with the cells first that execute a change; says how many they are."""
    ranks, touched = affected_ranks(change, stored_functions(), [cell.id for cell in cells], runs.ranks)
    print(sentence(change, touched, len(cells)), file=sys.stderr)
    return dataclasses.replace(runs, ranks=ranks)


def show_suspects(
    view: RunView,
    change: SourceChange,
    tier: str,
    seed: int,
    chosen: Sequence[Cell],
    runs: Callable[[Sequence[Cell]], Iterable[CellResult]],
) -> None:
    """Print the changed lines that only a red run's failing cells execute, found by running a few cells again, or why
    there are none. Where none passed, as `fail_fast` ended the run, a few of the `chosen` cells run now."""
    near = beside(view.red, view.cells, chosen) if change.lines else []
    cells = (*view.cells, *(runs(near) if near else ()))
    found, names, green = suspects(view.red, cells, change.lines, tier, seed)
    if view.red and not found:
        print(no_suspect(len(view.red), len(names), len(green), change.lines))
    for path, lines in found.items():
        for first, last in ranges(lines):
            place = f"{path}:{first}" + (f"-{last}" if last > first else "")
            print(f"{place}: executed by {', '.join(names)}, by none of {count(len(green), 'passing cell')} beside it")


def hash_of(only: Subset, cells: Sequence[Cell], options: RunOptions, data_hash: str) -> str:
    """The header's hash of the data for a part of the requests: other prompts, which no comparison takes for the same.
    ConfigError if a cell has none of them."""
    for cell in cells:
        only(cell, options.seed)
    return f"{data_hash} {only.options}"


def _with_decided(runs: CellRuns, records: Generator[CellResult]) -> Generator[CellResult]:
    """The records, and then those of the cells that tell the causes of the red ones apart."""
    found = []
    with closing(records):
        for record in records:
            found.append(record)
            yield record
    yield from decided(runs, found)


def show_run(view: RunView, out: Path, explained: Sequence[Path], json_: bool, junit: Path | None = None) -> None:
    """Print a run, as text or as the JSON of its summary, and write it to `junit`. explained: pages of steps."""
    if junit is not None:
        write_junit(view, junit)
    if json_:
        print(json.dumps(view.summary.to_json(), indent=2))
        return
    console = StdoutConsole()
    print_run(view, console)
    for page in explained:
        console.print(f"explained: {page}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {out / PAGE_FILE}", highlight=False, markup=False, soft_wrap=True)


def chosen_cells(tier: str, stage: str, cells: str | None, limit: int | None, subject: str = REFERENCE) -> list[Cell]:
    """The selected cells of a tier and a subject's stage: one GPU per rank, or one or two ranks on a CPU. Subjects have
    own cells on CPUs only.

    ConfigError if there are none.
    """
    gpus = find_tier(tier).gpus
    chosen = of_gpus(select(stage, cells, limit, REFERENCE if gpus else subject), gpus)
    if not chosen:
        ranks = count(gpus, "rank") if gpus else "1 or 2 ranks"
        raise ConfigError(
            f"tier {shown(tier)} has none of the selected cells of stage {shown(stage)}; its cells have {ranks}"
        )
    return chosen


def chosen_by(options: RunOptions) -> list[Cell]:
    """As `chosen_cells`, of one tier."""
    return chosen_cells(options.tier, options.stage, options.cells, options.limit, options.subject)


def places(options: RunOptions, workers: int | None) -> tuple[tuple[Host, ...] | None, int]:
    """The rows of a file of hosts, and the workers of `checked_workers`. ConfigError if the cells cannot run there."""
    there = None if options.hosts is None else read_hosts(options.hosts)
    own = next((row for row in there or () if row.name == options.shard), None)
    at_once = checked_workers(workers, options.tier, options.on, own)
    if options.on is None:
        visible_gpus(options.tier)
    elif there is not None:
        raise ConfigError("--hosts divides the cells by a file and --on by the nodes of a cluster; give one of them")
    return there, at_once


def timed_workers(options: RunOptions) -> int | None:
    """The number of workers to ask for: one where cells are timed, so that they do not disturb each other. ConfigError
    for several, or for `starts` that cannot be timed."""
    starts, workers = options.starts, options.workers
    if options.stage != TIMED:
        if starts is not None:
            raise ConfigError(f"--starts is for the stage {TIMED!r}; got stage {shown(options.stage)}")
        return workers
    if starts is not None and not LEAST_VALUES <= starts <= MOST_STARTS:
        raise ConfigError(f"--starts must be between {LEAST_VALUES} and {MOST_STARTS:,}, got {starts}")
    if workers not in (None, 1):
        raise ConfigError(f"stage {TIMED!r} measures one cell at a time; --workers must be 1, got {workers}")
    return None if options.on is not None and find_tier(options.tier).gpus != 1 else 1


def checked_workers(workers: int | None, tier: str, on: str | None, host: Host | None) -> int:
    """How many workers run on this machine, or how many tasks of a cluster share a GPU. host: this machine's row of a
    file of hosts. ConfigError if there are too many."""
    gpus = find_tier(tier).gpus
    if on is not None and gpus != 1:
        if workers is not None:
            where = "a CPU core" if not gpus else count(gpus, "GPU")
            raise ConfigError(
                f"--workers with --on is the number of tasks that share a GPU; a task of {tier} has {where}"
            )
        return 1
    found = workers if workers is not None else WORKERS if host is None else host.workers
    check_parallel("workers", found)
    return found


def failed_cells(source: Path, options: RunOptions) -> list[Cell]:
    """The cells of a report that are red without a waiver, or that its run ended before.

    ConfigError if there are none, if the report is of other options, if it is the one that the run would write, or if
    the options select cells too.
    """
    if options.cells is not None or options.limit is not None:
        raise ConfigError("--rerun-failed selects the cells; it takes neither --cells nor --limit")
    report = load(source)
    if (options.out / REPORT_FILE).resolve() == report.path.resolve():
        raise ConfigError(f"--out {options.out} holds the report whose failed cells rerun; name another folder")
    header = report.header
    found = {"subject": header.subject.name, "tier": header.tier, "stage": header.stage, "seed": header.seed}
    found["fault"] = header.fault
    for name in found:
        value = "" if getattr(options, name) is None else getattr(options, name)
        if found[name] == "" != value:
            raise ConfigError(f"{report.path} is of no {name}, not {value}; leave out --{name}")
        if found[name] != value:
            other = "none" if value == "" else value
            raise ConfigError(f"{report.path} is of {name} {found[name]}, not {other}; add --{name} {found[name]}")
    red = [cell for cell in report.red() if is_red(report[cell], header.created)]
    cells = [Cell.from_id(text) for text in (*red, *report.not_run)]
    if not cells:
        raise ConfigError(f"{report.path} has no red cell, and all of its cells ran; there is nothing to rerun")
    for cell in cells:
        expect(cell)
    return cells
