"""`specmatrix plan`: the cells of tiers divided over hosts or into shards, for executors to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, Final

from specmatrix.ci.planner import ShardPlan, shard_plan
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import chosen_cells, measured_seconds
from specmatrix.reports.render.console import print_answer
from specmatrix.reports.wording import count, duration

# Minutes of a job besides its cells, such as the installation, and how much slower than estimated a machine may be.
GRACE_MINUTES: Final = 20
SLACK: Final = 3


def plan(
    shards: int,
    tier: str = "cpu",
    stage: str = "pr",
    cells: list[str] | None = None,
    durations: Path | None = None,
    matrix: str | None = None,
    json_: bool = False,
    _plugin: list[Path] | None = None,
) -> int:
    """Print a plan for each tier, those of hosts packed together: a line per shard, JSON or a job matrix. ConfigError
    or ReportError on a bad option."""
    if matrix is not None and json_:
        raise ConfigError("--matrix prints JSON itself; give it without --json")
    plans = {
        name: shard_plan(chosen_cells(name, stage, cells, None), measured_seconds(durations, name), shards, gpus)
        for name, gpus in _tiers(tier).items()
    }
    if matrix is not None:
        print(json.dumps({"include": job_matrix(plans, read_runners(matrix))}))
        return 0
    lines = [
        f"{name} {shard.host}: {count(sum(len(group.cells) for group in shard.groups), 'cell')}, "
        f"about {duration(shard.seconds)}"
        for name, made in plans.items()
        for shard in made.shards
    ]
    rows = [{"tier": name} | made.as_dict() for name, made in plans.items()]
    return print_answer({"stage": stage, "plans": rows}, "\n".join(lines), json_)


def _tiers(text: str) -> dict[str, int]:
    """The tiers of `gpu1,gpu2`, with their GPUs. ConfigError if one is unknown or given twice."""
    names = [find_tier(name.strip()).name for name in text.split(",")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"tier {shown(twice)} is given twice; give it once")
    return {name: find_tier(name).gpus for name in names}


def read_runners(text: str) -> dict[str, str]:
    """The runner of each tier, from `cpu=LABEL,gpu1=LABEL`. ConfigError on anything else."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if wrong := next((part for part in pairs if not (part[0] and part[1])), None):
        raise ConfigError(f"--matrix must be like cpu=LABEL,gpu1=LABEL, got {shown(''.join(wrong))}")
    return {tier: label for tier, _, label in pairs if label}


def job_matrix(plans: Mapping[str, ShardPlan], runners: Mapping[str, str]) -> list[dict[str, Any]]:
    """A job per shard, with the minutes after which it is ended. ConfigError for a tier without a runner."""
    for tier in plans:
        if tier not in runners:
            raise ConfigError(f"--matrix has no runner for tier {shown(tier)}; it has {', '.join(runners) or 'none'}")
    return [
        {
            "tier": tier, "runner": runners[tier], "gpus": made.gpus,
            "shard": shard.host, "name": shard.host.replace("/", "-of-"),
            "minutes": GRACE_MINUTES + ceil(SLACK * shard.seconds / 60),
        }
        for tier, made in plans.items()
        for shard in made.shards
    ]  # fmt: skip
