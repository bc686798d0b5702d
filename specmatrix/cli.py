"""The command line: the options of every command. Each command's code is imported when it is called.

Exit status: 0 on success, 1 if something is red, 2 for invalid input (one error line on stderr), 130 after Ctrl-C,
141 if the reader closed stdout, 143 after SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from specmatrix import __version__
from specmatrix.ci.commands.cli import bisect, merge, plan, review
from specmatrix.errors import ConfigError, EngineError, shown
from specmatrix.extras import missing_extra
from specmatrix.matrix.cli.cell_commands import axes, cells_app, explain
from specmatrix.matrix.cli.commands.flags import EPILOG
from specmatrix.matrix.cli.errors import UsageError, misuse, repeated_option
from specmatrix.matrix.cli.exit_status import empty_word, failed, open_streams, unwritten, wrong
from specmatrix.matrix.cli.history_commands import history, site
from specmatrix.matrix.cli.model_commands import accuracy, checkpoints, zoo
from specmatrix.matrix.cli.options import (
    WORKERS,
    ApiKey,
    BaselineUrl,
    Decide,
    Durations,
    Explain,
    Hosts,
    Json,
    Junit,
    Launch,
    On,
    PlantedFault,
    Requests,
    RunShard,
    RunWorkers,
    Seed,
    Stage,
    Starts,
    Tokens,
    Url,
    Workers,
)
from specmatrix.matrix.cli.subject_commands import subjects
from specmatrix.matrix.subjects.http.endpoint import endpoint_of
from specmatrix.reports.schema import REFERENCE, ReportError
from specmatrix.stopping import Stopped, stoppable

# As `--help` and the table of the README list them; typer would list groups of commands last.
ORDER: Final = (
    *("run", "plan", "merge", "shrink", "compare", "review", "history", "site", "bisect"),
    *("axes", "cells", "explain", "lock", "subjects", "faults", "mutants", "incident", "accuracy", "generate"),
    *("serve", "contract", "simulate", "bench", "zoo", "checkpoints"),
)


class Commands(TyperGroup):
    """The commands in the order of `ORDER`."""

    def list_commands(self, ctx: object) -> list[str]:
        return sorted(self.commands, key=ORDER.index)


app = typer.Typer(
    name="specmatrix",
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(zoo, name="zoo")
app.add_typer(checkpoints, name="checkpoints")
app.add_typer(cells_app, name="cells")
app.add_typer(history, name="history")
app.command()(site)
app.add_typer(subjects, name="subjects")
incident = typer.Typer(help="Replay real incidents.", rich_markup_mode=None)
app.add_typer(incident, name="incident")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"specmatrix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """A generated test matrix for speculative decoding: run cells, report the results, compare two runs."""


@app.command()
def run(
    tier: Annotated[
        str, typer.Option(help="hardware of the cells: cpu, gpu1, gpu2, gpu4 or gpu8, or several, such as gpu1,gpu2")
    ] = "cpu",
    stage: Annotated[
        str, typer.Option(help="cells of the lock file: smoke, pr or nightly; product: all possible; speed: timed ones")
    ] = "pr",
    out: Annotated[Path, typer.Option(help="folder for report.jsonl, summary.json, report.md, report.html")] = Path(
        "out"
    ),
    cells: Annotated[
        str | None, typer.Option(help="select by id or by an expression like `algorithm=eagle3 and topk in (2, 4)`")
    ] = None,
    workers: RunWorkers = None,
    seed: Seed = 0,
    limit: Annotated[int | None, typer.Option(help="run at most this many cells")] = None,
    subject: Annotated[str, typer.Option(help="the engine under test, by a name of `specmatrix subjects`")] = REFERENCE,
    waivers: Annotated[
        Path | None, typer.Option(help="YAML file of known failures; default: specmatrix-waivers.yaml, if it is there")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="end at the first red cell")] = False,
    rerun_failed: Annotated[
        Path | None, typer.Option(help="run the cells of this report that are red or did not run")
    ] = None,
    affected: Annotated[
        str | None,
        typer.Option(metavar="BASE[..HEAD]", help="run the cells first that execute the functions of this change"),
    ] = None,
    fault: PlantedFault = None,
    explain: Explain = False,
    decide: Decide = False,
    shard: RunShard = "1/1",
    hosts: Hosts = None,
    on: On = None,
    durations: Durations = None,
    requests: Requests = None,
    tokens: Tokens = None,
    starts: Starts = None,
    url: Url = None,
    baseline_url: BaselineUrl = None,
    launch: Launch = None,
    api_key: ApiKey = None,
    junit: Junit = None,
    json_: Json = False,
) -> int:
    """Run cells and write their report."""
    from specmatrix.ci.commands.run import run as run_matrix
    from specmatrix.ci.run_options import RunOptions
    from specmatrix.matrix.workloads.subset import subset

    only, endpoint = subset(requests, tokens), endpoint_of(url, baseline_url, launch, api_key)
    options = RunOptions(
        tier=tier, stage=stage, out=out, cells=cells, limit=limit, rerun_failed=rerun_failed, affected=affected,
        seed=seed, only=only, subject=subject, endpoint=endpoint, fault=fault, waivers=waivers, workers=workers,
        shard=shard, hosts=hosts, on=on, durations=durations, starts=starts, fail_fast=fail_fast, explain=explain,
        decide=decide, junit=junit, json=json_,
    )  # fmt: skip
    return run_matrix(options)


for command in (plan, merge, review, bisect):
    app.command()(command)


@app.command()
def shrink(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="the id of a red cell")],
    gate: Annotated[str | None, typer.Option(help="the gate that must stay red; default: the first red one")] = None,
    tier: Annotated[str, typer.Option(help="hardware of the cell: cpu, gpu1, gpu2, gpu4 or gpu8")] = "cpu",
    workers: Workers = WORKERS,
    seed: Seed = 0,
    fault: PlantedFault = None,
) -> int:
    """Find the smallest form of a red cell that stays red.

    It has fewer axis values other than the default, fewer requests and fewer tokens.
    """
    from specmatrix.ci.commands.shrink import shrink as shrink_cell

    return shrink_cell(cell, tier, seed, workers, gate, fault)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="a report, or the folder of a run")],
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="the report to compare with it")],
    acknowledge: Annotated[Path | None, typer.Option(help="JSON file of accepted rewrites and lost cells")] = None,
    out: Annotated[Path | None, typer.Option(help="also write comparison.json, .md and .html here")] = None,
    json_: Json = False,
) -> int:
    """Compare the results and the coverage of two runs."""
    from specmatrix.matrix.cli.commands.compare import compare_reports

    return compare_reports(base, head, acknowledge, out, json_)


for command in (axes, explain, accuracy):
    app.command()(command)


@app.command()
def lock(
    check: Annotated[bool, typer.Option("--check", help="only verify it (the default)")] = False,
    extend: Annotated[bool, typer.Option("--extend", help="append what is missing")] = False,
    full: Annotated[bool, typer.Option("--full", help="also verify the triples of the nightly stage")] = False,
    functions: Annotated[
        bool, typer.Option("--functions", help="record the functions that each cell of stage pr executes")
    ] = False,
    order: Annotated[
        Path | None, typer.Option(metavar="KILLS.json", help="recompute the order of the cells from this kill matrix")
    ] = None,
    durations: Durations = None,
    workers: Workers = WORKERS,
) -> int:
    """Prove or extend the lock file, the list of cells that run."""
    from specmatrix.matrix.cli.commands.lock import lock as lock_cells

    return lock_cells(check, extend, full, order, durations, functions, workers)


@app.command(context_settings={"ignore_unknown_options": True}, epilog=EPILOG)
def generate(
    question: Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="a question in words")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 160,
    temperature: Annotated[float, typer.Option(help="sampling temperature; 0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(help="sampling seed")] = 0,
    threads: Annotated[int, typer.Option(help="compute threads")] = 1,
    speculative_algorithm_file: Annotated[
        Path | None, typer.Option(help="a Python file that registers a custom algorithm")
    ] = None,
) -> int:
    """Answer a question and measure the speed-up by speculation."""
    from specmatrix.engine.core.schedule.request import SamplingParams
    from specmatrix.matrix.cli.commands.generate import generate as answer

    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    return answer(question or [], params, speculative_algorithm_file, threads)


@app.command(context_settings={"ignore_unknown_options": True}, epilog=EPILOG)
def serve(
    words: Annotated[list[str] | None, typer.Argument(metavar="FLAG", hidden=True)] = None,
    host: Annotated[str, typer.Option(help="address to listen on; this one is of this machine only")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: a free one, which is printed")] = 30000,
    api_key: Annotated[str | None, typer.Option(help="key that every client must send as a bearer token")] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="the model's name in OpenAI's API; default: --model-path")
    ] = None,
    max_queued_requests: Annotated[int, typer.Option(help="requests that wait; further ones get status 429")] = 128,
    max_connections: Annotated[int, typer.Option(help="HTTP requests at once; further ones get status 429")] = 512,
    max_body_bytes: Annotated[int, typer.Option(help="longest body; a longer one gets status 413")] = 4 * 2**20,
    drain_seconds: Annotated[float, typer.Option(help="how long running requests may last after a signal")] = 60.0,
    threads: Annotated[int, typer.Option(help="compute threads")] = 1,
    speculative_algorithm_file: Annotated[
        Path | None, typer.Option(help="a Python file that registers a custom algorithm")
    ] = None,
) -> int:
    """Serve a model over HTTP.

    SGLang's native endpoints and OpenAI's completions and chat.
    """
    from specmatrix.matrix.cli.commands.serve import serve as serve_model

    options = {
        "host": host,
        "port": port,
        "key": api_key,
        "model": served_model_name,
        "max_queued_requests": max_queued_requests,
        "max_connections": max_connections,
        "max_body_bytes": max_body_bytes,
        "drain_seconds": drain_seconds,
    }
    return serve_model(words or [], speculative_algorithm_file, threads, options)


@app.command(context_settings={"ignore_unknown_options": True}, epilog=EPILOG)
def contract(
    algorithm: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="a Python file that registers algorithms, or an algorithm's name"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="seconds for each engine start; one that takes longer fails the contract")
    ] = 120.0,
    json_: Json = False,
) -> int:
    """Run the conformance suite for draft algorithms."""
    from specmatrix.matrix.cli.commands.contract import contract as run_contract

    return run_contract(algorithm or [], timeout, json_)


@app.command()
def faults(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="ids of faults; default: all")] = None,
    only: Annotated[list[str] | None, typer.Option(help="the same as an option; repeatable")] = None,
    stage: Stage = "pr",
    seed: Seed = 0,
    workers: Workers = WORKERS,
    out: Annotated[Path | None, typer.Option(help="also write faults.json here")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="also print each gate's message")] = False,
    json_: Json = False,
    tier: Annotated[str, typer.Option(help="where to plant them: cpu, or gpu1 for GPU-only faults")] = "cpu",
    first: Annotated[
        int | None, typer.Option(help="run this many cells of the stage before a fault's own, to the first red one")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="only list the faults")] = False,
) -> int:
    """Plant faults and report which gates detect each."""
    from specmatrix.matrix.faults.command import list_faults, main_faults

    chosen = [*(names or ()), *(only or ())]
    if list_:
        return list_faults(chosen, tier, json_)
    return main_faults(stage, json_, chosen, seed, workers, verbose, out, tier, first)


@app.command()
def mutants(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="mutants, as --list names them; default: a sample")
    ] = None,
    paths: Annotated[
        list[str] | None,
        typer.Option(help="files and folders to mutate; repeatable  [default: engine/core, engine/spec]"),
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
    """Report what kills small random changes of the code."""
    from specmatrix.ci.commands.mutants import main_mutants
    from specmatrix.matrix.faults.mutants import PATHS

    return main_mutants(ids or (), paths or PATHS, sample, seed, workers, tests, shard, list_, out, json_)


@app.command()
def bench(
    groups: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="benchmarks to run; default: all")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="run the GPU benchmarks instead")] = False,
    out: Annotated[Path | None, typer.Option(help="also write bench.json and bench.md here")] = None,
    json_: Json = False,
) -> int:
    """Run the benchmarks and compare each figure with its goal."""
    from specmatrix.benchmarks.command import GPU, GROUPS, NAMED, main_bench

    if gpu:
        if groups:
            raise ConfigError(
                f"benchmark {shown(groups[0])} cannot be combined with --gpu; give the name or --gpu, not both"
            )
        return main_bench(json_, out, (GPU,))
    for group in groups or ():
        if group not in NAMED:
            raise ConfigError(f"benchmark {shown(group)} is unknown; it must be one of {', '.join(NAMED)}")
    return main_bench(json_, out, groups or GROUPS)


@app.command()
def simulate(
    minutes: Annotated[float, typer.Option(help="wall-clock limit, on one core")] = 1.0,
    seed: Annotated[int, typer.Option(help="seed of the schedules")] = 0,
    schedules: Annotated[int | None, typer.Option(help="number of schedules, instead of --minutes")] = None,
    replay: Annotated[int | None, typer.Option(help="run only this schedule, a number printed on failure")] = None,
    json_: Json = False,
) -> int:
    """Simulate random schedules on a toy device.

    Arrivals, aborts, sessions and memory pressure are random; the ledger and the tokens are checked.
    """
    from specmatrix.matrix.cli.commands.simulate import simulate as run_simulation

    return run_simulation(minutes, seed, schedules, replay, json_)


@incident.command("list")
def incident_list(json_: Json = False) -> int:
    """List the incidents."""
    from specmatrix.matrix.cli.commands.incident import list_incidents

    return list_incidents(json_)


@incident.command("run")
def incident_run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list, or all")],
    out: Annotated[Path | None, typer.Option(help="also keep the reports and the rendered comparisons here")] = None,
    json_: Json = False,
) -> int:
    """Replay an incident.

    Runs base and head of each change, and prints the comparison that its reviewer would have seen.
    """
    from specmatrix.matrix.cli.commands.incident import run_incidents

    return run_incidents(name, out, json_)


@incident.command("all")
def incident_all(
    out: Annotated[Path | None, typer.Option(help="also keep the reports and the rendered comparisons here")] = None,
    json_: Json = False,
) -> int:
    """Replay every incident, as `run all`."""
    from specmatrix.matrix.cli.commands.incident import run_incidents

    return run_incidents("all", out, json_)


@cache
def command_line() -> TyperGroup:
    """All commands, with their options."""
    return cast(TyperGroup, typer.main.get_command(app))


def _named_command(words: Sequence[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """The innermost command that a command line names, and its path, such as ["history", "add"]."""
    node: TyperCommand | TyperGroup = command_line()
    path: list[str] = []
    for word in words:
        if word not in (known := getattr(node, "commands", {})):
            break
        node, path = known[word], [*path, word]
    return node, path


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (by default that of this process) and return its exit status."""
    open_streams()
    given = list(sys.argv[1:] if words is None else words)
    if empty := empty_word(given):
        return wrong(f"{empty} is empty, perhaps an unset shell variable; give a value or omit it")
    command, path = _named_command(given)
    if twice := repeated_option(command, given[len(path) :]):
        return wrong(f"{twice} is given twice; give it once")
    try:
        with stoppable():
            status = command_line()(args=given, prog_name="specmatrix", standalone_mode=False)
        sys.stdout.flush()
    except (EngineError, ReportError) as error:
        return wrong(str(error))
    except UsageError as error:
        return wrong(f"{misuse(error, given)}; see `{' '.join(('specmatrix', *path))} --help`")
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        return wrong(sentence)
    except MemoryError:
        return wrong("memory is exhausted; free some, or raise the limit, see `ulimit -a`")
    except OSError as error:
        return failed(error)
    except SystemExit as end:
        # typer exits with 1 if the reader closed stdout, but 1 means that something is red.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return unwritten(end.__context__)
    except Stopped as stop:
        with suppress(OSError):
            print(stop, file=sys.stderr, flush=True)
        return stop.status
    return int(status or 0)
