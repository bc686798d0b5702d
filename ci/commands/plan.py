"""`specmatrix plan`: the cells of tiers divided over hosts or into shards, for executors to read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import yaml

from specmatrix.ci.commands.run import chosen_cells
from specmatrix.ci.planner import MOST, Host, ShardPlan, plan, shard_plan
from specmatrix.errors import ConfigError, shown
from specmatrix.files import read_text
from specmatrix.matrix.cover.order import measured_seconds
from specmatrix.matrix.run.tiers import tier as find_tier
from specmatrix.reports.wording import count, duration, shorten


def print_plan(
    tiers: str,
    stage: str,
    cells: str | None,
    shards: int | None,
    hosts: Path | None,
    durations: Path | None,
    json_: bool,
) -> int:
    """Print a plan for each tier, as a line per shard or as JSON. ConfigError or ReportError on a bad option."""
    if (shards is None) == (hosts is None):
        raise ConfigError("give either --shards or --hosts")
    if shards is not None and not 1 <= shards <= MOST:
        raise ConfigError(f"--shards must be between 1 and {MOST}, got {shards}")
    there = () if hosts is None else read_hosts(hosts)
    seconds = measured_seconds(durations)
    names = [name.strip() for name in tiers.split(",")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"tier {shown(twice)} is given twice; give it once")
    plans: dict[str, ShardPlan] = {}
    for name in names:
        chosen, gpus = chosen_cells(name, stage, cells, None), find_tier(name).gpus
        plans[name] = (
            plan(chosen, seconds, there, gpus) if shards is None else shard_plan(chosen, seconds, shards, gpus)
        )
    if json_:
        print(json.dumps({"stage": stage, "plans": [{"tier": name} | made.as_dict() for name, made in plans.items()]}))
        return 0
    for name, made in plans.items():
        for shard in made.shards:
            number = sum(len(group.cells) for group in shard.groups)
            lane = "" if shards is not None else f" worker {shard.lane}"
            print(f"{name} {shard.host}{lane}: {count(number, 'cell')}, about {duration(shard.seconds)}")
    return 0


def read_hosts(path: Path) -> tuple[Host, ...]:
    """The hosts of a YAML file. ConfigError, one sentence, on whatever is wrong with it."""
    try:
        found = msgspec.convert(yaml.safe_load(read_text(path)), tuple[Host, ...])
    except OSError as error:
        raise ConfigError(f"cannot read the hosts {shown(str(path))}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"the hosts {shown(str(path))} are invalid: {shorten(str(error), 200)}") from None
    if twice := next((row.name for row in found if sum(row.name == other.name for other in found) > 1), None):
        raise ConfigError(f"host {shown(twice)} is listed twice in {path}")
    return found
