"""The options of `specmatrix run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from specmatrix.matrix.subjects.http.endpoint import Endpoint, endpoint_of
from specmatrix.matrix.workloads.subset import Subset, subset
from specmatrix.options import (
    AlgorithmFile,
    ApiKey,
    BaselineUrl,
    Durations,
    Json,
    Junit,
    Launch,
    PlantedFault,
    Plugins,
    Seed,
    Selector,
    SubjectName,
    Tier,
    Url,
)
from specmatrix.reports.schema import REFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, each with its default. ConfigError if they name a server or a subset only in part."""

    tier: Tier = "cpu"
    stage: Annotated[
        str, typer.Option(help="cells of the lock file: smoke, pr or nightly; product: all possible; speed: timed ones")
    ] = "pr"
    out: Annotated[Path, typer.Option(help="folder for report.jsonl, summary.json, report.md, report.html")] = Path(
        "out"
    )
    cells: Selector = None
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes, one compute thread each; per set of GPUs; --on: per GPU; --url: 1"),
    ] = None
    seed: Seed = 0
    label: Annotated[str, typer.Option(help="what the report calls the build under test")] = ""
    limit: Annotated[int | None, typer.Option(help="run at most this many cells")] = None
    subject: SubjectName = REFERENCE
    waivers: Annotated[
        Path | None, typer.Option(help="YAML file of known failures; default: specmatrix-waivers.yaml, if it is there")
    ] = None
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="end at the first red cell")] = False
    rerun_failed: Annotated[
        Path | None, typer.Option(help="run the cells of this report that are red or did not run")
    ] = None
    fault: PlantedFault = None
    explain: Annotated[
        bool,
        typer.Option("--explain", help="trace a second run of each red cell, or of the only one, as a page of steps"),
    ] = False
    shard: Annotated[str, typer.Option(help="one of several about equally long shards, such as 2/4")] = "1/1"
    on: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT"),
    ] = None
    durations: Durations = None
    requests: Annotated[
        str | None,
        typer.Option(help="only these requests of each cell, by name: q6,q7; with those that they wait for"),
    ] = None
    tokens: Annotated[int | None, typer.Option(help="at most this many output tokens of each request")] = None
    starts: Annotated[
        int | None, typer.Option(help="stage `speed`: engine starts of each cell; more see smaller changes")
    ] = None
    url: Url = None
    baseline_url: BaselineUrl = None
    launch: Launch = None
    api_key: ApiKey = None
    junit: Junit = None
    plugin: Plugins = None
    speculative_algorithm_file: AlgorithmFile = None
    json: Json = False

    def __post_init__(self) -> None:
        _ = self.only, self.endpoint

    @property
    def only(self) -> Subset | None:
        """The requests that run, None for all."""
        return subset(self.requests, self.tokens)

    @property
    def files(self) -> str:
        """The options that name the user's files, which are on this machine alone."""
        named = [("plugin", path) for path in self.plugin or ()]
        if self.speculative_algorithm_file is not None:
            named.append(("speculative-algorithm-file", self.speculative_algorithm_file))
        return " ".join(f"--{option} {quote(str(path))}" for option, path in named)

    @property
    def endpoint(self) -> Endpoint | None:
        """The server under test, if any."""
        return endpoint_of(self.url, self.baseline_url, self.launch, self.api_key)
