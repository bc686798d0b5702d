"""Tiers that share the GPUs of their hosts at the same time: a pure function.

The widest tier is planned first, the next one on the GPUs that it leaves and on those that it has done with, and so on.
GPUs go from wider cells to narrower ones and never back, so a worker ends once for each tier, and no set of GPUs of a
cell's width waits while such a cell does. Every width divides the next one and sets of GPUs are aligned, so the work
that keeps a cell waiting fills all sets of its width: the last cell begins at the latest at `area`, and the plan takes
at most `area` and the longest group, which is at most twice as long as the best (Graham 1966, Bell Syst. Tech. J. 45).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specmatrix.ci.planner import NO_RANKS, START_SECONDS, Host, Place, ShardPlan, plan
from specmatrix.matrix.cells.cell import Cell


@dataclass(frozen=True, slots=True)
class Demand:
    """The cells of a tier. gpus: of each. durations: measured seconds by cell id."""

    cells: Sequence[Cell]
    gpus: int
    durations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """A plan for each demand, in their order. area: the time that the GPUs need for all groups of some width and above
    if they are never idle; no plan of these groups is shorter than `bound`."""

    plans: tuple[ShardPlan, ...]
    area: float

    @property
    def seconds(self) -> float:
        return max(made.seconds for made in self.plans)

    @property
    def longest(self) -> float:
        """Seconds of the longest group."""
        return max(
            (group.seconds for made in self.plans for shard in made.shards for group in shard.groups), default=0.0
        )

    @property
    def bound(self) -> float:
        return max(self.area, self.longest)


def pack(
    demands: Sequence[Demand],
    hosts: Sequence[Host],
    start_seconds: float = START_SECONDS,
    ranks: Mapping[str, int] = NO_RANKS,
) -> PackedPlan:
    """Plans of several tiers that run at the same time. Cells of a CPU tier share no GPU with any other.

    ConfigError as `plan`.
    """
    busy: dict[Place, float] = {}
    made: dict[int, ShardPlan] = {}
    for number in sorted(range(len(demands)), key=lambda number: -demands[number].gpus):
        one = demands[number]
        made[number] = plan(one.cells, one.durations, hosts, one.gpus, start_seconds, ranks, busy)
        for shard in made[number].shards:
            busy |= dict.fromkeys(shard.places, shard.end)
    plans = tuple(made[number] for number in range(len(demands)))
    return PackedPlan(plans, max((_area(width, plans, hosts) for width in {one.gpus for one in demands}), default=0.0))


def _area(width: int, plans: Iterable[ShardPlan], hosts: Sequence[Host]) -> float:
    """The seconds of all groups of this width and above, in sets of `width` GPUs, over the number of these sets."""
    sets = sum((host.gpus // width if width else 1) * host.workers for host in hosts)
    return (
        sum(
            shard.seconds * (made.gpus // width if width else 1)
            for made in plans
            if (made.gpus >= width if width else not made.gpus)
            for shard in made.shards
        )
        / sets
    )
