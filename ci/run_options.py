"""What `specmatrix run` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.reports.schema import REFERENCE

WHOLE: Final = "1/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, each with its default; the command builds them once.

    tier: one, or several such as `gpu1,gpu2`. cells: a selector or an id. workers: None for as many as there are cores.
    waivers, durations, hosts, rerun_failed, junit: files. only: the requests that run, None for all. fault: the id of a
    planted one. affected: a change BASE..HEAD. on: the address of a Ray cluster. starts: of each timed cell.
    """

    tier: str = "cpu"
    stage: str = "pr"
    out: Path = Path("out")
    cells: str | None = None
    limit: int | None = None
    rerun_failed: Path | None = None
    affected: str | None = None
    seed: int = 0
    only: Subset | None = None
    subject: str = REFERENCE
    endpoint: Endpoint | None = None
    fault: str | None = None
    waivers: Path | None = None
    workers: int | None = None
    shard: str = WHOLE
    hosts: Path | None = None
    on: str | None = None
    durations: Path | None = None
    starts: int | None = None
    fail_fast: bool = False
    explain: bool = False
    decide: bool = False
    junit: Path | None = None
    json: bool = False
