"""Tiers that share GPUs: no GPU is oversubscribed, and the plan is close to the best."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.ci.packing import Demand, pack
from specmatrix.ci.planner import Host, plan
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell

# Cells of one rank can run on any number of GPUs, as far as a plan is concerned; all starts differ.
MADE = [
    Cell(page_size=page, model=model) for page, model in product(("1", "4", "16", "64"), ("llama", "qwen3", "deepseek"))
]
SECONDS = st.lists(st.floats(0.1, 100), max_size=len(MADE))


def demand(gpus, seconds):
    cells = MADE[: len(seconds)]
    return Demand(cells, gpus, {cell.id: one for cell, one in zip(cells, seconds, strict=True)})


def intervals(packed):
    """(host, GPU, begin, end) of every group."""
    for made in packed.plans:
        for shard in made.shards:
            begin = shard.begin
            for group in shard.groups:
                for gpu in shard.gpus:
                    yield shard.host, gpu, begin, begin + group.seconds
                begin += group.seconds


def most_at_once(packed):
    """By host, on how many workers its busiest GPU ever is."""
    events = [
        ((host, gpu), when, change)
        for host, gpu, begin, end in intervals(packed)
        for when, change in ((begin, 1), (end - 1e-9, -1))
    ]
    most: dict[str, int] = {}
    level: dict[tuple[str, int], int] = {}
    for place, _, change in sorted(events, key=lambda event: (event[1], event[2])):
        level[place] = level.get(place, 0) + change
        most[place[0]] = max(most.get(place[0], 0), level[place])
    return most


HOSTS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2)), min_size=1, max_size=3).map(
    lambda rows: [Host(f"h{n}", gpus, workers) for n, (gpus, workers) in enumerate(rows)]
)


@given(HOSTS, st.dictionaries(st.sampled_from([1, 2, 4, 8]), SECONDS, min_size=1))
@settings(max_examples=150, deadline=None)
def test_no_gpu_is_oversubscribed_and_the_plan_is_at_most_twice_the_best(hosts, wanted):
    there = max(host.gpus for host in hosts)
    demands = [demand(gpus, seconds) for gpus, seconds in wanted.items() if gpus <= there]
    if not demands:
        return
    packed = pack(demands, hosts, start_seconds=0.1)
    for one, made in zip(demands, packed.plans, strict=True):
        planned = [cell for shard in made.shards for group in shard.groups for cell in group.cells]
        assert sorted(planned) == sorted(one.cells)
        assert all(len(shard.gpus) == one.gpus for shard in made.shards)
    rows = {host.name: host for host in hosts}
    assert all(gpu < rows[host].gpus for host, gpu, *_ in intervals(packed))
    assert all(most <= rows[host].workers for host, most in most_at_once(packed).items())
    assert packed.seconds <= packed.area + packed.longest + 1e-6 <= 2 * packed.bound + 2e-6
    alone = [plan(one.cells, one.durations, hosts, one.gpus, 0.1) for one in demands]
    assert packed.seconds <= sum(made.seconds for made in alone) + 1e-6
    assert packed.bound >= max(made.bound for made in alone) - 1e-6


def test_narrow_cells_fill_the_gpus_that_wide_ones_leave():
    hosts = [Host("a", gpus=8)]
    packed = pack([demand(1, [9.9] * 4), demand(4, [9.9])], hosts, start_seconds=0.1)
    assert packed.seconds == packed.bound == pytest.approx(10)
    one, four = packed.plans
    assert [shard.gpus for shard in four.shards if shard.groups] == [(0, 1, 2, 3)]
    assert sorted(shard.gpus for shard in one.shards if shard.groups) == [(4,), (5,), (6,), (7,)]
    assert plan(MADE[:4], {}, hosts, 1).shards[0].begin == 0


def test_gpus_that_wide_cells_have_done_with_run_narrow_ones():
    packed = pack([demand(4, [9.9]), demand(1, [19.9] * 2)], [Host("a", gpus=4)], start_seconds=0.1)
    assert [shard.begin for shard in packed.plans[1].shards] == [pytest.approx(10)] * 4
    assert packed.seconds == pytest.approx(30)


def test_cells_of_the_cpu_wait_for_no_gpu():
    packed = pack([demand(0, [4.9] * 2), demand(2, [9.9])], [Host("a", gpus=2, workers=2)], start_seconds=0.1)
    assert [shard.begin for shard in packed.plans[0].shards] == [0, 0]
    assert (packed.seconds, packed.bound) == (pytest.approx(10), pytest.approx(10))


def test_the_bound_counts_sets_of_gpus_and_not_gpus():
    """Two cells of four GPUs cannot share seven."""
    packed = pack([demand(4, [9.9] * 2)], [Host("a", gpus=7)], start_seconds=0.1)
    assert packed.seconds == packed.bound == pytest.approx(20)


def test_without_cells_nothing_takes_time():
    assert pack([demand(2, [])], [Host("a", gpus=2)]).bound == 0


def test_a_tier_that_no_host_can_run_is_refused():
    with pytest.raises(ConfigError, match="no host has 4 GPUs; hosts: a"):
        pack([demand(1, [1.0]), demand(4, [1.0])], [Host("a", gpus=2)])
