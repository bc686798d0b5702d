"""Partition of the registered test files over hosts by estimated seconds: a pure function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specmatrix.ci.registry import Registration
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cover.lockfile import STAGES
from specmatrix.matrix.run.tiers import tier as find_tier

WHOLE: Final = "1/1"


@dataclass(frozen=True, slots=True)
class Part:
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


def partition(files: Sequence[Registration], count: int) -> list[Part]:
    """Split the files into `count` parts: each goes, longest first, to the shortest part (LPT, Graham 1969).

    The result does not depend on the files' order, so hosts that know their number need not communicate.
    """
    parts: list[list[Registration]] = [[] for _ in range(count)]
    for file in sorted(files, key=lambda file: (-file.est_seconds, file.path)):
        min(parts, key=lambda part: sum(other.est_seconds for other in part)).append(file)
    return [Part(tuple(sorted(part, key=lambda file: file.path))) for part in parts]


def part_of(files: Sequence[Registration], which: str) -> Part:
    """One part, given as `2/4`. ConfigError on another format, or if there are fewer files than parts."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", which)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            f"part must have the form NUMBER/COUNT, such as 2/4 for the second of four, got {shown(which)}"
        )
    if count > max(1, len(files)):
        raise ConfigError(f"part count must be at most {max(1, len(files))}, the number of test files, got {count}")
    return partition(files, count)[number - 1]
