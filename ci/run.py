"""`specmatrix run`: cells over worker processes, and the report of what they found.

`specmatrix merge`: the reports of all shards of a run as one report.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from specmatrix.ci.cell_runs import CellRuns, cell_runs
from specmatrix.ci.planner import of_shard
from specmatrix.ci.run_options import RunOptions
from specmatrix.ci.shrink import MAX_SECONDS, causes
from specmatrix.errors import ConfigError, shown
from specmatrix.extras import require
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cells.tiers import TIMED, check_parallel, check_seed, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import cheaper_stage, chosen_cells, measured_seconds
from specmatrix.matrix.gates.registry import all_gates, applied_gates
from specmatrix.matrix.gates.same_texts import SameTexts
from specmatrix.matrix.run.executed_lines import Lines, own_change, suspects
from specmatrix.matrix.run.explain import Explain
from specmatrix.matrix.run.plugins import load_algorithm_plugin
from specmatrix.matrix.run.provenance import merged_host, run_header
from specmatrix.matrix.run.running_cells import listing
from specmatrix.matrix.run.waivers import load_waivers
from specmatrix.matrix.subjects.protocol import Subject
from specmatrix.matrix.subjects.registry import foreign_subject
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.options import WORKERS
from specmatrix.reports.render.run import RunView, write_explained, write_run
from specmatrix.reports.render.terminal import show_run
from specmatrix.reports.schema import REFERENCE, REPORT_FILE, Cause, CellResult, Header, ShardRecord, WaiverRule, is_red
from specmatrix.reports.schema import Json as JsonValue
from specmatrix.reports.stats import MIN_VALUES
from specmatrix.reports.store import PARTIAL_FILE, Report, ReportWriter, check_place, load
from specmatrix.reports.wording import count, ranges, shorten
from specmatrix.stopping import Stopped

MAX_STARTS: Final = 100
# Characters of the red cells that an interrupted run names.
NAMED: Final = 240


def run_command(**given: Any) -> int:  # noqa: ANN401 - fields of RunOptions
    """`run` with the fields of its options, which the command line reads from the signature."""
    return run(RunOptions(**given))


run_command.__signature__ = inspect.signature(RunOptions, eval_str=True)  # type: ignore[attr-defined]


def run(options: RunOptions) -> int:
    """Run, report, and return the exit status: 0 if nothing is red. ConfigError or ReportError on a bad option."""
    if options.junit is not None:
        check_place(options.junit.parent, options.junit.name)
    engine, rules = foreign_subject(options.subject, options.endpoint), load_waivers(options.waivers)
    if options.speculative_algorithm_file is not None:
        options = with_algorithms(options, options.speculative_algorithm_file)
    gpus, only = find_tier(options.tier).gpus, options.only
    at_once = checked_workers(timed_workers(options), options.tier, options.on)
    if options.on is None:
        visible_gpus(options.tier)
    if options.subject == REFERENCE:
        require("torch")
    seconds = measured_seconds(options.durations, options.tier)
    # The lines of the checkout that differ since its branch left the main one; a fault is planted in a copy.
    change = own_change() if options.subject == REFERENCE and not (options.fault or options.json or gpus) else {}
    with cell_runs(options, at_once, seconds, rules) as runs:
        again = options.rerun_failed
        name = options.subject if engine is None else engine.name
        chosen = chosen_by(options, engine) if again is None else failed_cells(again, options, name)
        check_seed(options.seed)
        part, chosen = of_shard(chosen, seconds, options.shard, gpus)
        verify_cells(chosen)
        parts = (part, engine, options.cells, options.limit, options.rerun_failed)
        less = cheaper_stage(options.stage, gpus) if all(one is None for one in parts) else None
        header = replace(header_of(runs, engine, rules, part), cheaper=less)
        header = header if only is None else replace(header, data_hash=hash_of(only, chosen, options, header.data_hash))
        which: Explain = "none" if gpus else "draft"
        if options.explain:
            which = "every" if len(chosen) == 1 else "red"
        decide = None
        if len(chosen) > 1 and engine is None and not (gpus or options.fail_fast or only or options.stage == TIMED):
            decide = partial(causes, runs.beside(MAX_SECONDS), today=header.created)
        writer = write_report(options.out, header, chosen, runs.explained(which)(chosen), options.fail_fast, decide)
        with writer.read() as report:
            view = write_run(report)
        named = [*suspect_lines(view, change, options.tier, options.seed)]
    # A connected cluster captures printed output.
    show_run(view, options.out, write_explained(view, options.out), options.json, options.junit)
    for line in named:
        print(line)
    return int(view.verdict != "green")


def with_algorithms(options: RunOptions, file: Path) -> RunOptions:
    """The options with the cells of a file's algorithms, unless they select others. ConfigError for another subject."""
    if options.subject != REFERENCE:
        raise ConfigError(f"--speculative-algorithm-file is for the reference engine, not {shown(options.subject)}")
    require("torch")
    names = load_algorithm_plugin(file)
    if options.cells is not None or options.rerun_failed is not None:
        return options
    return dataclasses.replace(options, cells=[f"algorithm in ({', '.join(names)})"])


def write_report(
    out: Path,
    header: Header,
    cells: Sequence[Cell],
    records: Generator[CellResult],
    fail_fast: bool,
    decide: Callable[[Sequence[CellResult]], Mapping[str, Cause]] | None = None,
) -> ReportWriter:
    """Write a report. Stopped is raised again with a message on the partial output. fail_fast: end the run
    at the first red cell that is not waived. decide: finds the causes of red groups after the last cell."""
    done, red, kept = set[str](), list[str](), list[CellResult]()
    stopped: Stopped | None = None
    report, partial = out / REPORT_FILE, out / PARTIAL_FILE
    try:
        # Workers end before an error is reported.
        with ReportWriter(out, header) as writer, closing(records):
            for record in records:
                writer.write(record)
                done.add(record.id)
                kept += [record] if decide else []
                if is_red(record, header.created):
                    red.append(record.id)
                    if fail_fast:
                        writer.not_run = [cell.id for cell in cells if cell.id not in done]
                        break
            if red and decide:
                try:
                    writer.causes = decide(kept)
                except Stopped as stop:  # the report is complete without them
                    stopped = stop
        if stopped is not None:
            raise stopped
    except Stopped as stop:
        if len(done) == len(cells) and not partial.exists():
            raise stop.saying(f"interrupted after {report} was written; its summary and pages were not") from None
        older = f"; {report} is from an earlier run" if report.exists() else ""
        text = f"interrupted after {len(done):,} of {count(len(cells), 'cell')}, {len(red):,} of them red"
        if red:
            text += f" ({shorten(', '.join(red), NAMED)})"
        raise stop.saying(f"{text}; partial results are in {partial}, which is not a report{older}") from None
    return writer


def header_of(
    runs: CellRuns, engine: Subject | None, rules: tuple[WaiverRule, ...], part: ShardRecord | None
) -> Header:
    """The header of a run's report."""
    gates = all_gates() if engine is None else applied_gates(engine.profile).gates
    asked = runs.job.options
    header = run_header(asked.tier, asked.stage, asked.seed, gates, engine, rules)
    host = header.host if runs.cluster is None else runs.cluster.host
    return replace(header, fault=asked.fault or "", label=asked.label, shard=part, host=host)


def suspect_lines(view: RunView, change: Lines, tier: str, seed: int) -> Iterator[str]:
    """Sentences on the changed lines that only failing cells execute, found by running a few cells again."""
    found, names, green = suspects(view.red, view.cells, change, tier, seed)
    for path, lines in found.items():
        for first, last in ranges(sorted(lines)):
            place = f"{path}:{first}" + (f"-{last}" if last > first else "")
            yield f"{place}: executed by {', '.join(names)}, by none of {count(len(green), 'passing cell')} beside it"


def hash_of(only: Subset, cells: Sequence[Cell], options: RunOptions, data_hash: str) -> str:
    """The header's data hash for a subset of requests: the prompts differ, so comparisons must not treat them as equal.
    ConfigError if a cell has none of them."""
    for cell in cells:
        only(cell, options.seed)
    return f"{data_hash} {only.options}"


def chosen_by(options: RunOptions, engine: Subject | None) -> list[Cell]:
    """As `chosen_cells`, for the tier of the options."""
    listed = listing(engine, options.tier, options.cells)
    return chosen_cells(options.tier, options.stage, options.cells, options.limit, listed)


def timed_workers(options: RunOptions) -> int | None:
    """The number of workers to request: one if cells are timed, or if they share a running server and no number is
    given, so that they do not disturb each other. ConfigError for several that time cells, or for `starts` that cannot
    be timed."""
    starts, workers = options.starts, options.workers
    if options.stage != TIMED:
        if starts is not None:
            raise ConfigError(f"--starts is for the stage {TIMED!r}; got stage {shown(options.stage)}")
        return 1 if workers is None and options.endpoint is not None and options.endpoint.url is not None else workers
    if starts is not None and not MIN_VALUES <= starts <= MAX_STARTS:
        raise ConfigError(f"--starts must be between {MIN_VALUES} and {MAX_STARTS:,}, got {starts}")
    if workers not in (None, 1):
        raise ConfigError(f"stage {TIMED!r} measures one cell at a time; --workers must be 1, got {workers}")
    return None if options.on is not None and find_tier(options.tier).gpus != 1 else 1


def checked_workers(workers: int | None, tier: str, on: str | None) -> int:
    """The number of workers on this machine, or of a cluster's tasks that share a GPU. ConfigError if there are too
    many."""
    gpus = find_tier(tier).gpus
    if on is not None and gpus != 1:
        if workers is not None:
            where = "a CPU core" if not gpus else count(gpus, "GPU")
            raise ConfigError(
                f"--workers with --on is the number of tasks that share a GPU; a task of {tier} has {where}"
            )
        return 1
    found = workers if workers is not None else WORKERS
    check_parallel("workers", found)
    return found


def failed_cells(source: Path, options: RunOptions, subject: str) -> list[Cell]:
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
        value = subject if name == "subject" else getattr(options, name)
        value = "" if value is None else value
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


# Header fields in which shards may differ: when and where they ran, and which shard each is.
OWN: Final = ("created", "host", "shard")


def merge(reports: list[Path], out: Path, junit: Path | None = None, json_: bool = False) -> int:
    """Write and print the report of the whole run; the exit status is that of the run.

    ConfigError if the reports are not all shards of one run, or if `out` holds one of them.
    """
    shards = [load(source) for source in reports]
    for report in shards:
        if (out / REPORT_FILE).resolve() == report.path.resolve():
            raise ConfigError(f"--out {out} holds one of the reports that are merged; name another folder")
    header = merged_header(shards)
    texts = SameTexts()
    with ReportWriter(out, header) as writer:
        for report in shards:
            for cell in report:
                writer.write(texts.judged(cell, last=True))
        writer.not_run = [cell for report in shards for cell in report.not_run]
        held = [report.gpu_seconds for report in shards]
        writer.gpu_seconds = None if None in held else sum(filter(None, held))
    with writer.read() as report:
        view = write_run(report)
    show_run(view, out, (), json_, junit)
    return int(view.verdict != "green")


def merged_header(reports: Sequence[Report]) -> Header:
    """The header of the whole run. ConfigError if a shard is missing or there twice, or if the runs differ."""
    first = reports[0]
    for report in reports:
        for name in (name for name in Header.__struct_fields__ if name not in OWN):
            _same(first, report, name, getattr(first.header, name), getattr(report.header, name))
    shards = [_shard(report) for report in reports]
    for report, shard in zip(reports, shards, strict=True):
        _same(first, report, "shards", shards[0].count, shard.count)
        _same(first, report, "selected cells", (shards[0].cells, shards[0].digest), (shard.cells, shard.digest))
    numbers = [shard.number for shard in shards]
    count = shards[0].count
    for number in range(1, count + 1):
        if number not in numbers:
            raise ConfigError(f"shard {number}/{count} is missing; merge takes the reports of all shards")
        if numbers.count(number) > 1:
            paths = [str(report.path) for report, own in zip(reports, numbers, strict=True) if own == number]
            raise ConfigError(f"{paths[0]} and {paths[1]} are both shard {number}/{count}; give one of them")
    _check_cells(reports, shards[0].cells)
    hosts = [report.header.host for report in reports]
    host = hosts[0] if all(one == hosts[0] for one in hosts) else merged_host(hosts)
    return replace(first.header, shard=None, host=host, created=min(report.header.created for report in reports))


def _shard(report: Report) -> ShardRecord:
    if report.header.shard is None:
        raise ConfigError(f"{report.path} is not a shard; run its cells with `specmatrix run --shard`")
    return report.header.shard


def _same(first: Report, other: Report, name: str, value: JsonValue, its: JsonValue) -> None:
    if value != its:
        text = f"{first.path} and {other.path} differ in {name}"
        values = f": {value} and {its}" if isinstance(value, str | int) else ""
        raise ConfigError(f"{text}{values}; merge takes the shards of one run")


def _check_cells(reports: Sequence[Report], expected: int) -> None:
    """ConfigError unless each cell is in exactly one shard; shards planned with different durations violate this."""
    seen: dict[str, Report] = {}
    for report in reports:
        for cell in (*report.lines, *report.not_run):
            if cell in seen:
                where = f"{seen[cell].path} and {report.path}"
                raise ConfigError(f"{where} both have cell {cell!r}; give every shard the same --durations")
            seen[cell] = report
    if len(seen) != expected:
        raise ConfigError(f"the shards have {len(seen)} of {expected} cells; give every shard the same --durations")
