"""The commands of models: accuracy, the zoo, published checkpoints. Each one's code is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmatrix.matrix.cli.options import ApiKey, BaselineUrl, Json, Launch, Models
from specmatrix.matrix.subjects.http.endpoint import endpoint_of

zoo = typer.Typer(help="List, verify, train and measure the fixture models.", rich_markup_mode=None)
checkpoints = typer.Typer(help="List and check published checkpoints for the GPU tiers.", rich_markup_mode=None)


@zoo.command("list")
def zoo_list(json_: Json = False) -> int:
    """Print the model cards."""
    from specmatrix.matrix.cli.commands.zoo import list_models

    return list_models(json_)


@zoo.command("verify")
def zoo_verify() -> int:
    """Verify the checksums of every model."""
    from specmatrix.matrix.cli.commands.zoo import verify_models

    return verify_models()


@zoo.command("acceptance")
def zoo_acceptance(
    targets: Annotated[list[str] | None, typer.Argument(metavar="TARGET", help="targets; default: all")] = None,
    data: Annotated[Path | None, typer.Option(help="questions in GSM8K format; default: gsm-mini test")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    prompts: Annotated[int, typer.Option(help="number of questions")] = 100,
    tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 128,
    json_: Json = False,
) -> int:
    """Measure the acceptance length of each draft.

    It is that of several draft shapes, and of drafts with random weights for comparison.
    """
    from specmatrix.matrix.cli.commands.lengths import acceptance

    return acceptance(targets or [], algorithm or [], data, prompts, tokens, json_)


@zoo.command("train")
def zoo_train(
    names: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="models; default: all")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for the checkpoints")] = Path("out/zoo"),
    minutes: Annotated[float, typer.Option(help="wall-clock limit; one model takes 8 on an H100, all take 30")] = 8.0,
    quick: Annotated[bool, typer.Option("--quick", help="a few steps only, as a smoke test")] = False,
) -> int:
    """Train models from their recipes."""
    from specmatrix.matrix.cli.commands.zoo import train_models

    return train_models(names or [], device, out, minutes, quick)


@checkpoints.command("list")
def checkpoints_list(json_: Json = False) -> int:
    """List targets and drafts with their memory requirements."""
    from specmatrix.matrix.cli.commands.checkpoints import list_pairs

    return list_pairs(json_)


@checkpoints.command("show")
def checkpoints_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list")],
    json_: Json = False,
) -> int:
    """Print a checkpoint's source and requirements.

    Also the fields that could not be verified, and the command that evaluates it on GSM8K.
    """
    from specmatrix.matrix.cli.commands.checkpoints import show

    return show(name, json_)


@checkpoints.command("check")
def checkpoints_check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="names of the list; default: all")] = None,
    models: Models = None,
    json_: Json = False,
) -> int:
    """Report what this machine lacks to run them.

    A GPU, its memory, or checkpoint files.
    """
    from specmatrix.matrix.cli.commands.checkpoints import check

    return check(names or [], models, json_)


def accuracy(
    data: Annotated[Path, typer.Option(help="the task's questions as JSON Lines")],
    task: Annotated[str, typer.Option(help="the task's name")] = "gsm8k",
    train: Annotated[Path | None, typer.Option(help="questions for few-shot examples")] = None,
    cell: Annotated[str | None, typer.Option(help="the cell to evaluate, by id; default: eagle3.s3.k1.n4.v2")] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(help="published checkpoints instead, by a name of `specmatrix checkpoints list`"),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="weights: all of these checkpoints, or each --checkpoint, as cells of a report")
    ] = None,
    models: Models = None,
    limit: Annotated[int | None, typer.Option(help="ask at most this many questions")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="few-shot examples per prompt; default: 5, for cells of the zoo 0")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="longest answer in tokens")] = 256,
    url: Annotated[str | None, typer.Option(help="instead: a running server with OpenAI's completions")] = None,
    baseline_url: BaselineUrl = None,
    launch: Launch = None,
    api_key: ApiKey = None,
    out: Annotated[Path | None, typer.Option(help="also write accuracy.json and accuracy.md here")] = None,
    json_: Json = False,
) -> int:
    """Measure task accuracy with and without speculation."""
    from specmatrix.matrix.accuracy.command import main_accuracy
    from specmatrix.matrix.accuracy.paired_run import Asking

    shots = num_fewshot if num_fewshot is not None else 5 if (checkpoint, stage, url) != (None, None, None) else 0
    return main_accuracy(
        Asking(task, data, train, limit, shots, max_new_tokens),
        stage=stage,
        cell=cell,
        checkpoints=checkpoint or (),
        models=models,
        endpoint=endpoint_of(url, baseline_url, launch, api_key),
        out=out,
        json_=json_,
    )
