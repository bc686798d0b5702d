"""Shards of the registered test files, one for each host, by estimated seconds: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specmatrix.ci.planner import parse_shard
from specmatrix.ci.registry import Registration
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cover.lockfile import STAGES
from specmatrix.matrix.run.tiers import tier as find_tier


@dataclass(frozen=True, slots=True)
class FileShard:
    """Test files for one host, by path; seconds is the sum of their estimates."""

    files: tuple[Registration, ...]

    @property
    def seconds(self) -> float:
        return sum(file.est_seconds for file in self.files)


def of_stage(files: Iterable[Registration], tier: str, stage: str) -> list[Registration]:
    """The files of a tier that run in a stage: its own and those of earlier stages. ConfigError on unknown names."""
    name = find_tier(tier).name
    if stage not in STAGES:
        raise ConfigError(f"stage {shown(stage)} is unknown; it must be one of {', '.join(STAGES)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return [file for file in files if file.tier == name and file.stage in stages]


def partition(files: Sequence[Registration], count: int) -> list[FileShard]:
    """Split the files into `count` shards: each goes, longest first, to the shortest shard (LPT, Graham 1969).

    The result does not depend on the files' order, so hosts that know their number need not communicate.
    """
    shards: list[list[Registration]] = [[] for _ in range(count)]
    for file in sorted(files, key=lambda file: (-file.est_seconds, file.path)):
        min(shards, key=lambda shard: sum(other.est_seconds for other in shard)).append(file)
    return [FileShard(tuple(sorted(shard, key=lambda file: file.path))) for shard in shards]


def file_shard(files: Sequence[Registration], which: str) -> FileShard:
    """One shard, given as `2/4`. ConfigError on another format, or if there are fewer files than shards."""
    number, count = parse_shard(which)
    if count > max(1, len(files)):
        raise ConfigError(f"shard count must be at most {max(1, len(files))}, the number of test files, got {count}")
    return partition(files, count)[number - 1]
