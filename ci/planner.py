"""Assignment of cells to hosts: a pure function from cells, durations and hosts to a plan.

Cells with the same start key form a group, because one engine start serves them all. Groups longer than SPLIT average
shards are split; then each group goes to the shortest shard: first those with ranked cells, which find most faults
(`matrix/cover/selection.py`), by rank, then the others, longest first (LPT). On a CPU, where an engine starts in a
tenth of a second, the cells of the first ALONE ranks are groups of their own: the others of their start would keep the
next ranks waiting. Executors only read the plan; workers of one machine take the groups from one queue, in the order of
their planned beginnings.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from math import ceil, inf
from types import MappingProxyType
from typing import Any, Final

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.reports.schema import ShardRecord

SPLIT: Final = 1.3
START_SECONDS: Final = 0.5
# Ranks whose cells do not wait for others of their engine start.
ALONE: Final = 64
NO_RANKS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Host:
    """One machine: its number of GPUs, and of concurrent workers on its CPU or on each set of GPUs."""

    name: str
    gpus: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Cells of one engine start, the ranked ones first, then the longest; seconds include the start."""

    start_key: tuple[str, ...]
    cells: tuple[Cell, ...]
    seconds: float


@dataclass(slots=True)
class Shard:
    """The groups of one worker; only `plan` writes it. lane: index of the worker on its host; gpus: device indices."""

    host: str
    lane: int
    gpus: tuple[int, ...]
    groups: list[Group] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(group.seconds for group in self.groups)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A shard for every worker; each cell occurs once. bound: a lower bound in seconds for any plan of these groups."""

    gpus: int
    shards: tuple[Shard, ...]
    bound: float

    @property
    def seconds(self) -> float:
        """The time until the last shard ends."""
        return max(shard.seconds for shard in self.shards)

    @property
    def queue(self) -> list[Group]:
        """The groups of all shards, in order of planned start time."""
        begun = [
            (at, place, group)
            for place, shard in enumerate(self.shards)
            for at, group in zip(accumulate((g.seconds for g in shard.groups), initial=0.0), shard.groups, strict=False)
        ]
        return [group for *_, group in sorted(begun, key=lambda one: one[:2])]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-serialisable data in a fixed order: shards -> ordered groups -> cell ids."""
        return {
            "schema": 1,
            "gpus": self.gpus,
            "seconds": round(self.seconds, 3),
            "bound": round(self.bound, 3),
            "shards": [_shard(shard) for shard in self.shards],
        }


def _shard(shard: Shard) -> dict[str, Any]:
    return {
        "host": shard.host,
        "lane": shard.lane,
        "gpus": list(shard.gpus),
        "seconds": round(shard.seconds, 3),
        "groups": [{"seconds": round(g.seconds, 3), "cells": [cell.id for cell in g.cells]} for g in shard.groups],
    }


def parse_shard(text: str) -> tuple[int, int]:
    """Number and count of a shard given as `2/4`. ConfigError on another format."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            "shard must be NUMBER/COUNT with NUMBER from 1 to COUNT, such as 2/4 for the second of four, got "
            f"{shown(text)}"
        )
    return number, count


def shard_plan(cells: Sequence[Cell], durations: Mapping[str, float], count: int, gpus: int = 0) -> ShardPlan:
    """The plan for `count` hosts with one worker each, named 1/4, 2/4 and so on: the same on every host.

    ConfigError if a shard would be empty.
    """
    made = plan(cells, durations, [Host(f"{n}/{count}", gpus) for n in range(1, count + 1)], gpus)
    most = sum(bool(shard.groups) for shard in made.shards)
    if most < count:
        raise ConfigError(f"shard count must be at most {most} for these cells, got {count}")
    return made


def of_shard(
    cells: list[Cell], seconds: Mapping[str, float], shard: str, gpus: int
) -> tuple[ShardRecord | None, list[Cell]]:
    """(header record, cells) of a shard such as 2/4; None and all cells for 1/1."""
    number, total = parse_shard(shard)
    if total == 1:
        return None, cells
    lane = shard_plan(cells, seconds, total, gpus).shards[number - 1]
    own = {cell for group in lane.groups for cell in group.cells}
    digest = blake2b("\n".join(sorted(cell.id for cell in cells)).encode(), digest_size=6).hexdigest()
    return ShardRecord(number, total, len(cells), digest), [cell for cell in cells if cell in own]


def plan(
    cells: Iterable[Cell],
    durations: Mapping[str, float],
    hosts: Sequence[Host],
    gpus: int = 0,
    start_seconds: float = START_SECONDS,
    ranks: Mapping[str, int] = NO_RANKS,
) -> ShardPlan:
    """A plan for cells with `gpus` GPUs each; the order of `cells` does not matter.

    durations: measured seconds by cell id; the default is the cell's estimate. start_seconds: per engine start. ranks:
    cell id to position, for cells that run early. ConfigError if no host has enough GPUs, a cell needs more GPUs, or a
    duration is not a positive number.
    """
    shards = _lanes(hosts, gpus)
    costs = _costs(cells, durations, gpus)
    groups = _groups(costs, start_seconds, set() if gpus else {cell for cell in costs if _rank(cell, ranks) < ALONE})
    average = sum(group.seconds for group in groups) / len(shards)
    parts = [part for group in groups for part in _split(group, costs, average, start_seconds)]
    parts = [replace(part, cells=tuple(sorted(part.cells, key=lambda cell: _rank(cell, ranks)))) for part in parts]
    for part in sorted(parts, key=lambda part: (_rank(part.cells[0], ranks), -part.seconds, part.cells)):
        min(shards, key=lambda shard: shard.seconds).groups.append(part)
    longest = max((part.seconds for part in parts), default=0.0)
    return ShardPlan(gpus, tuple(shards), max(longest, sum(part.seconds for part in parts) / len(shards)))


def _rank(cell: Cell, ranks: Mapping[str, int]) -> float:
    return ranks.get(cell.id, inf)


def _lanes(hosts: Sequence[Host], gpus: int) -> list[Shard]:
    """One empty shard per worker, on the CPU or on a set of `gpus` GPUs of one host; adjacent lanes use other GPUs."""
    lanes = []
    for host in hosts:
        sets = host.gpus // gpus if gpus else 1
        for lane in range(sets * host.workers):
            first = lane % sets * gpus
            lanes.append(Shard(host.name, lane, tuple(range(first, first + gpus))))
    if not lanes:
        need = f"{gpus} GPUs" if gpus else "a CPU worker"
        raise ConfigError(f"no host has {need}; hosts: {', '.join(host.name for host in hosts) or 'none'}")
    return lanes


def _costs(cells: Iterable[Cell], durations: Mapping[str, float], gpus: int) -> dict[Cell, float]:
    costs = {cell: durations.get(cell.id, cell.seconds) for cell in sorted(set(cells))}
    for cell, seconds in costs.items():
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"duration of {cell.id} must be a positive number of seconds, got {seconds}")
        if cell.gpus > gpus:
            raise ConfigError(f"cell {cell.id} needs {cell.gpus} GPUs, but the plan provides {gpus}")
    return costs


def _groups(costs: Mapping[Cell, float], start_seconds: float, alone: Set[Cell]) -> list[Group]:
    members: dict[tuple[str, ...], list[Cell]] = {}
    for cell in costs:
        members.setdefault(cell if cell in alone else cell.start_key, []).append(cell)
    return [_group(cells, costs, start_seconds) for cells in members.values()]


def _group(cells: Sequence[Cell], costs: Mapping[Cell, float], start_seconds: float) -> Group:
    ordered = tuple(sorted(cells, key=lambda cell: (-costs[cell], cell)))
    return Group(ordered[0].start_key, ordered, start_seconds + sum(costs[cell] for cell in ordered))


def _split(group: Group, costs: Mapping[Cell, float], average: float, start_seconds: float) -> list[Group]:
    """The group itself, or even parts of about an average shard, each with its own engine start."""
    if group.seconds <= SPLIT * average or len(group.cells) == 1:
        return [group]
    parts: list[list[Cell]] = [[] for _ in range(min(ceil(group.seconds / average), len(group.cells)))]
    for cell in group.cells:
        min(parts, key=lambda part: sum(costs[c] for c in part)).append(cell)
    return [_group(part, costs, start_seconds) for part in parts]
