"""The command line: the options of every command. Each command's code is imported when it is called.

Exit status: 0 if nothing is red, 1 if something is, 2 if the question was wrong (one sentence on stderr), 130 after
Ctrl-C, 141 if the reader of stdout went away, 143 after SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from specmatrix import __version__
from specmatrix.errors import ConfigError, EngineError
from specmatrix.matrix.cli.commands.flags import EPILOG
from specmatrix.matrix.cli.errors import misuse
from specmatrix.matrix.cli.stopping import Stopped, stoppable
from specmatrix.reports.schema import ReportError

# The command line library's error for a wrong option; typer exports only the classes below it.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])
# A full disk, a quota or a limit on files behind stdout, or a reader that went away.
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)
WORKERS: Final = min(os.cpu_count() or 1, 8)
app = typer.Typer(
    name="specmatrix",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
zoo = typer.Typer(help="The fixture models.", rich_markup_mode=None)
app.add_typer(zoo, name="zoo")
checkpoints = typer.Typer(help="Published checkpoints, for the GPU tiers.", rich_markup_mode=None)
app.add_typer(checkpoints, name="checkpoints")

Stage = Annotated[str, typer.Option(help="cells of the lock file: smoke, pr or nightly")]
Workers = Annotated[int, typer.Option(help="processes, one compute thread each; on GPUs, for each set of them")]
Seed = Annotated[int, typer.Option(help="rotates prompts and draws")]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Models = Annotated[
    Path | None, typer.Option(help="folder of published checkpoints, by their hub names; else the hub's cache")
]


def _say_version(asked: bool) -> None:
    if asked:
        print(f"specmatrix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """A generated test matrix for speculative decoding: run cells, read what they prove, compare two runs."""


@app.command()
def run(
    tier: Annotated[str, typer.Option(help="what the cells cost: cpu, gpu1, gpu2, gpu4 or gpu8")] = "cpu",
    stage: Annotated[
        str, typer.Option(help="cells of the lock file: smoke, pr or nightly; product is every cell")
    ] = "pr",
    out: Annotated[Path, typer.Option(help="folder for report.jsonl, summary.json, report.md, report.html")] = Path(
        "out"
    ),
    cells: Annotated[
        str | None, typer.Option(help="which of them: a cell's id, or `algorithm=eagle3 and topk in (2, 4)`")
    ] = None,
    workers: Workers = WORKERS,
    seed: Seed = 0,
    limit: Annotated[int | None, typer.Option(help="run at most this many cells")] = None,
    json_: Json = False,
) -> int:
    """Run cells and write their report."""
    from specmatrix.ci.commands.run import run as run_matrix

    return run_matrix(tier, stage, out, cells, workers, seed, limit, json_)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="a report, or the folder of a run")],
    head: Annotated[Path, typer.Argument(help="the one that is judged against it")],
    acknowledge: Annotated[Path | None, typer.Option(help="JSON file of accepted rewrites and lost cells")] = None,
    out: Annotated[Path | None, typer.Option(help="also write comparison.json, .md and .html here")] = None,
    json_: Json = False,
) -> int:
    """Compare two runs and what they exercised."""
    from specmatrix.matrix.cli.commands.compare import compare_reports

    return compare_reports(base, head, acknowledge, out, json_)


@app.command()
def explain(
    cell: Annotated[list[str], typer.Argument(help="a cell's id, or axis=value ...")],
) -> int:
    """Say what a cell comes to, and why."""
    from specmatrix.matrix.cells.constraints import explain_text

    print(explain_text(" ".join(cell)))
    return 0


@app.command()
def lock(
    check: Annotated[bool, typer.Option("--check", help="only prove it (the default)")] = False,
    extend: Annotated[bool, typer.Option("--extend", help="append what is missing")] = False,
    full: Annotated[bool, typer.Option("--full", help="prove the triples of the nightly stage as well")] = False,
) -> int:
    """Prove or extend the lock file, the list of cells that run."""
    from specmatrix.matrix.cli.commands.lock import lock as lock_cells

    return lock_cells(check, extend, full)


@app.command(context_settings={"ignore_unknown_options": True}, epilog=EPILOG)
def generate(
    question: Annotated[list[str] | None, typer.Argument(metavar="question", help="a question in words")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 160,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token")] = 0.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    threads: Annotated[int, typer.Option(help="compute threads")] = 1,
    speculative_algorithm_file: Annotated[
        Path | None, typer.Option(help="a Python file that registers an algorithm of yours")
    ] = None,
) -> int:
    """Answer a question and time the drafter."""
    from specmatrix.engine.core.schedule.request import SamplingParams
    from specmatrix.matrix.cli.commands.generate import generate as answer

    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    return answer(question or [], params, speculative_algorithm_file, threads)


@app.command(context_settings={"ignore_unknown_options": True}, epilog=EPILOG)
def contract(
    algorithm: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="a Python file that registers algorithms, or a name")
    ] = None,
    json_: Json = False,
) -> int:
    """Hold an algorithm of yours to the contract of all."""
    from specmatrix.matrix.cli.commands.contract import contract as hold

    return hold(algorithm or [], json_)


@app.command()
def faults(
    names: Annotated[list[str] | None, typer.Argument(help="ids of faults; all of them if none is named")] = None,
    only: Annotated[list[str] | None, typer.Option(help="the same as an option; may be given again")] = None,
    stage: Stage = "pr",
    seed: Seed = 0,
    workers: Workers = WORKERS,
    out: Annotated[Path | None, typer.Option(help="also write faults.json here")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="also print what each gate said")] = False,
    json_: Json = False,
    tier: Annotated[str, typer.Option(help="where they are planted: cpu, or gpu1 for what only a GPU has")] = "cpu",
    list_: Annotated[bool, typer.Option("--list", help="only print what there is to plant")] = False,
) -> int:
    """Plant faults and see which gate kills each."""
    from specmatrix.matrix.faults.command import list_faults, main_faults

    chosen = [*(names or ()), *(only or ())]
    if list_:
        return list_faults(chosen, tier, json_)
    return main_faults(stage, json_, chosen, seed, workers, verbose, out, tier)


@app.command()
def accuracy(
    data: Annotated[Path, typer.Option(help="the task's questions as JSON Lines")],
    task: Annotated[str, typer.Option(help="the task's name")] = "gsm8k",
    train: Annotated[Path | None, typer.Option(help="questions for worked examples")] = None,
    cell: Annotated[
        str | None, typer.Option(help="the cell of the zoo that answers, by its id; by default eagle3.s3.k1.n4.v2")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="or published checkpoints, by a name of `specmatrix checkpoints list`")
    ] = None,
    models: Models = None,
    limit: Annotated[int | None, typer.Option(help="ask at most this many questions")] = None,
    num_fewshot: Annotated[int, typer.Option(help="worked examples per prompt")] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 256,
    out: Annotated[Path | None, typer.Option(help="also write accuracy.json and accuracy.md here")] = None,
    json_: Json = False,
) -> int:
    """Measure task accuracy with and without drafts."""
    from specmatrix.matrix.accuracy.command import main_accuracy

    return main_accuracy(
        task,
        data,
        train=train,
        cell=cell,
        checkpoint=checkpoint,
        models=models,
        limit=limit,
        num_fewshot=num_fewshot,
        max_new_tokens=max_new_tokens,
        out=out,
        json_=json_,
    )


@app.command()
def bench(
    groups: Annotated[list[str] | None, typer.Argument(help="what to measure; everything if nothing is named")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="what has goals on one GPU instead")] = False,
    out: Annotated[Path | None, typer.Option(help="also write bench.json and bench.md here")] = None,
    json_: Json = False,
) -> int:
    """Measure every figure that has a goal."""
    from specmatrix.benchmarks.command import GPU, GROUPS, main_bench

    if gpu:
        if groups:
            raise ConfigError(f"benchmark {groups[0]!r} is not measured with --gpu; give the name or --gpu, not both")
        return main_bench(json_, out, (GPU,))
    for group in groups or ():
        if group not in GROUPS:
            raise ConfigError(f"benchmark {group!r} is unknown; it must be one of {', '.join(GROUPS)}")
    return main_bench(json_, out, groups or GROUPS)


@app.command()
def tests(
    tier: Annotated[str, typer.Option(help="what they cost: cpu, gpu1, gpu2, gpu4 or gpu8")] = "cpu",
    stage: Annotated[str, typer.Option(help="smoke, pr or nightly; each runs those before it too")] = "pr",
    part: Annotated[str, typer.Option(help="of parts that take equally long: 2/4 is the second of four")] = "1/1",
    paths: Annotated[bool, typer.Option("--paths", help="print nothing but the paths, for pytest")] = False,
    json_: Json = False,
) -> int:
    """List the registered tests of a tier and their seconds."""
    from specmatrix.ci.commands.tests import list_tests

    return list_tests(tier, stage, part, paths, json_)


@app.command()
def simulate(
    minutes: Annotated[float, typer.Option(help="wall clock, one core")] = 1.0,
    seed: Annotated[int, typer.Option(help="another seed, other schedules")] = 0,
    schedules: Annotated[int | None, typer.Option(help="run so many, whatever the clock says")] = None,
    replay: Annotated[int | None, typer.Option(help="run this one schedule, a number that a failure printed")] = None,
    json_: Json = False,
) -> int:
    """Run random schedules on a toy device: arrivals, aborts, sessions, shortage, every law and token checked."""
    from specmatrix.matrix.cli.commands.simulate import simulate as run_simulation

    return run_simulation(minutes, seed, schedules, replay, json_)


@zoo.command("list")
def zoo_list(json_: Json = False) -> int:
    """Print what is known of every model."""
    from specmatrix.matrix.cli.commands.zoo import list_models

    return list_models(json_)


@zoo.command("verify")
def zoo_verify() -> int:
    """Load every model and compare it with its card."""
    from specmatrix.matrix.cli.commands.zoo import verify_models

    return verify_models()


@zoo.command("acceptance")
def zoo_acceptance(
    targets: Annotated[list[str] | None, typer.Argument(help="targets; all of them if none is named")] = None,
    data: Annotated[Path | None, typer.Option(help="questions in GSM8K's format; else gsm-mini's test split")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="only this one; may be given again")] = None,
    prompts: Annotated[int, typer.Option(help="how many questions, from the first on")] = 100,
    tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 128,
    json_: Json = False,
) -> int:
    """Measure tokens per round of every draft in many shapes, beside drafts of random weights."""
    from specmatrix.matrix.cli.commands.lengths import acceptance

    return acceptance(targets or [], algorithm or [], data, prompts, tokens, json_)


@zoo.command("train")
def zoo_train(
    names: Annotated[list[str] | None, typer.Argument(help="models; all of them if none is named")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for the checkpoints")] = Path("out/zoo"),
    minutes: Annotated[float, typer.Option(help="wall clock; one model takes 8 on an H100, all 30")] = 8.0,
    quick: Annotated[bool, typer.Option("--quick", help="a few steps only, to see that it works")] = False,
) -> int:
    """Train models from their recipes."""
    from specmatrix.matrix.cli.commands.zoo import train_models

    return train_models(names or [], device, out, minutes, quick)


@checkpoints.command("list")
def checkpoints_list(json_: Json = False) -> int:
    """List targets and drafts with what they need."""
    from specmatrix.matrix.cli.commands.checkpoints import list_pairs

    return list_pairs(json_)


@checkpoints.command("show")
def checkpoints_show(
    name: Annotated[str, typer.Argument(help="a name of the list")],
    json_: Json = False,
) -> int:
    """Print where one comes from, what is not verified, its memory and its GSM8K command."""
    from specmatrix.matrix.cli.commands.checkpoints import show

    return show(name, json_)


@checkpoints.command("check")
def checkpoints_check(
    names: Annotated[list[str] | None, typer.Argument(help="names of the list; all of them if none is named")] = None,
    models: Models = None,
    json_: Json = False,
) -> int:
    """Say what this machine lacks to run them: a GPU, its memory, a checkpoint or a part of one."""
    from specmatrix.matrix.cli.commands.checkpoints import check

    return check(names or [], models, json_)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (by default that of this process) and return its exit status."""
    try:
        with stoppable():
            status = app(args=None if words is None else list(words), prog_name="specmatrix", standalone_mode=False)
        sys.stdout.flush()
    except (EngineError, ReportError) as error:
        return _wrong(str(error))
    except UsageError as error:
        given = sys.argv[1:] if words is None else words
        return _wrong(f"{misuse(error, given)}; `specmatrix --help` lists what there is")
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        return _unwritten(error)
    except SystemExit as end:
        # The command line library ends so where a reader went away; 1 is the status of what is red.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return _unwritten(end.__context__)
    except Stopped as stop:
        print(stop, file=sys.stderr)
        return stop.status
    return int(status or 0)


def _unwritten(error: OSError) -> int:
    # What is left in the buffer would fail again when Python closes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        # `| head` has what it wanted; this is how a shell tells SIGPIPE.
        return 128 + signal.SIGPIPE
    return _wrong(f"cannot write the output: {error.strerror}")


def _wrong(sentence: str) -> int:
    print(f"specmatrix: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
