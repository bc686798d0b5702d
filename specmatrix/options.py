"""Options shared by several commands."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

WORKERS: Final = min(os.cpu_count() or 1, 8)


def _load_plugins(files: list[Path] | None) -> list[Path]:
    import_module("specmatrix.matrix.run.plugins").load_plugins(files or ())
    return files or []


Acknowledge = Annotated[Path | None, typer.Option(help="JSON file of accepted rewrites and lost cells")]
AlgorithmFile = Annotated[Path | None, typer.Option(help="a Python file that registers a custom algorithm")]
ApiKey = Annotated[str | None, typer.Option(help="key of these servers")]
BaselineUrl = Annotated[str | None, typer.Option(help="the same server without speculation")]
Durations = Annotated[
    Path | None, typer.Option(help="a report or history whose cells' seconds replace the estimates of the lock file")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Junit = Annotated[Path | None, typer.Option(help="also write the run as JUnit XML to this file")]
Launch = Annotated[
    str | None, typer.Option(help="instead of --url: a command that starts a server, with {flags} for a cell's flags")
]
Minutes = Annotated[float, typer.Option(min=0.001, max=1e6, help="wall-clock limit")]
Models = Annotated[
    Path | None, typer.Option(help="folder of published checkpoints, by hub name; default: the hub's cache")
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_load_plugins,
        is_eager=True,
        help="a Python file that registers axis values, gates, faults or algorithms; repeatable",
    ),
]
PlantedFault = Annotated[
    str | None, typer.Option("--fault", help="plant this fault of `specmatrix faults --list` in the engine first")
]
Seed = Annotated[int, typer.Option(help="seed for prompts and sampling")]
Selector = Annotated[
    list[str] | None,
    typer.Option("--cells", help="select by id or by `algorithm=eagle3 and topk in (2, 4)`; given again: these too"),
]
Stage = Annotated[str, typer.Option(help="cells of the lock file: smoke, pr or nightly")]
SubjectName = Annotated[
    str, typer.Option("--subject", help="the engine under test, by a name of `specmatrix subjects`")
]
Threads = Annotated[int, typer.Option(help="compute threads")]
Tier = Annotated[str, typer.Option(help="hardware of the cells: cpu, gpu1, gpu2, gpu4 or gpu8")]
Url = Annotated[str | None, typer.Option(help="a running server, for the subjects sglang, openai and openai-chat")]
Workers = Annotated[int, typer.Option(help="worker processes, one compute thread each; on GPUs, per set of GPUs")]
