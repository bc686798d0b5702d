"""Options that several commands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

WORKERS: Final = min(os.cpu_count() or 1, 8)
Stage = Annotated[str, typer.Option(help="cells of the lock file: smoke, pr or nightly")]
Workers = Annotated[int, typer.Option(help="worker processes, one compute thread each; on GPUs, per set of GPUs")]
RunWorkers = Annotated[
    int | None,
    typer.Option(help="worker processes, one compute thread each; on GPUs, per set of GPUs; with --on, per GPU"),
]
Seed = Annotated[int, typer.Option(help="seed for prompts and sampling")]
PlantedFault = Annotated[
    str | None, typer.Option("--fault", help="plant this fault of `specmatrix faults --list` in the engine first")
]
RunShard = Annotated[
    str, typer.Option(help="one of several about equally long shards, such as 2/4; with --hosts, one's name")
]
Hosts = Annotated[Path | None, typer.Option(help="YAML file of hosts: a list of name, gpus and workers")]
On = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT"),
]
Durations = Annotated[
    Path | None, typer.Option(help="a report or history whose cells' seconds replace the estimates of the lock file")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Junit = Annotated[Path | None, typer.Option(help="also write the run as JUnit XML to this file")]
Models = Annotated[
    Path | None, typer.Option(help="folder of published checkpoints, by hub name; default: the hub's cache")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="trace a second run of each red cell, or of the only one, as a page of steps")
]
Decide = Annotated[
    bool, typer.Option("--decide", help="also run the cells that tell the candidate causes of red cells apart")
]
Requests = Annotated[
    str | None, typer.Option(help="only these requests of each cell, by name: q6,q7; with those that they wait for")
]
Tokens = Annotated[int | None, typer.Option(help="at most this many output tokens of each request")]
Starts = Annotated[int | None, typer.Option(help="stage `speed`: engine starts of each cell; more see smaller changes")]
Url = Annotated[str | None, typer.Option(help="a running server, for the subjects sglang, openai and openai-chat")]
BaselineUrl = Annotated[str | None, typer.Option(help="the same server without speculation")]
Launch = Annotated[
    str | None, typer.Option(help="instead of --url: a command that starts a server, with {flags} for a cell's flags")
]
ApiKey = Annotated[str | None, typer.Option(help="key of these servers")]
