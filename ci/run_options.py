"""The options of `specmatrix run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from specmatrix.matrix.subjects.http.endpoint import Endpoint, endpoint_of
from specmatrix.matrix.workloads.subset import Subset, subset
from specmatrix.reports.schema import REFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, each with its default. ConfigError if they name a server or a subset only in part."""

    tier: str = "cpu"
    stage: str = "pr"
    out: Path = Path("out")
    cells: list[str] | None = None
    workers: int | None = None
    seed: int = 0
    label: str = ""
    limit: int | None = None
    subject: str = REFERENCE
    waivers: Path | None = None
    fail_fast: bool = False
    rerun_failed: Path | None = None
    fault: str | None = None
    explain: bool = False
    shard: str = "1/1"
    on: str | None = None
    durations: Path | None = None
    requests: str | None = None
    tokens: int | None = None
    starts: int | None = None
    url: str | None = None
    baseline_url: str | None = None
    launch: str | None = None
    api_key: str | None = None
    junit: Path | None = None
    plugin: list[Path] | None = None
    speculative_algorithm_file: Path | None = None
    json: bool = False

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
