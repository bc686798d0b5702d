import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.ci import planner
from specmatrix.ci.planner import SPLIT, Host, parse_shard, plan, shard_plan
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import GPUS, Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import of_gpus

CELLS = of_gpus(stage_cells("pr"), 0)
TWO = [Host("laptop", workers=2)]


def cells_of(made) -> list[Cell]:
    return [cell for shard in made.shards for group in shard.groups for cell in group.cells]


def test_the_plan_does_not_depend_on_the_order_of_the_cells():
    shuffled = CELLS[:]
    random.Random(5).shuffle(shuffled)
    assert plan(shuffled, {}, TWO).as_dict() == plan(CELLS, {}, TWO).as_dict()


def test_a_group_is_one_start():
    made = plan(CELLS, {}, TWO)
    for shard in made.shards:
        assert all(cell.start_key == group.start_key for group in shard.groups for cell in group.cells)
    groups = [group for shard in made.shards for group in shard.groups]
    assert len(groups) == len({cell.start_key for cell in CELLS})


def test_the_committed_cells_are_planned_close_to_the_bound():
    made = plan(of_gpus(stage_cells("nightly"), 0), {}, [Host("a", workers=4)])
    assert made.seconds <= 1.1 * made.bound


def test_ranked_cells_run_first_on_every_worker_and_wait_for_no_others_of_their_start():
    early = ["none.length", "eagle3.k4", "none.pair.length", "ngram.v2.pair", "dflash.n4.mixed_lengths"]
    ranks = {name: place for place, name in enumerate(early)}
    cells = [*CELLS, *(cell for cell in map(Cell.from_id, early) if cell not in CELLS)]
    ranked = plan(cells, {}, TWO, ranks=ranks)
    groups = [group for shard in ranked.shards for group in shard.groups]
    for shard in ranked.shards:
        places = [ranks.get(group.cells[0].id, len(ranks)) for group in shard.groups]
        assert places[0] < len(ranks) and places == sorted(places)
    assert [[cell.id for cell in group.cells] for group in ranked.queue[: len(early)]] == [[name] for name in early]
    assert len(groups) == len(early) + len({cell.start_key for cell in cells if cell.id not in ranks})
    assert sorted(cells_of(ranked)) == sorted(cells) and ranked.seconds <= 1.05 * ranked.bound


def test_late_ranks_and_those_of_a_gpu_stay_with_their_engine_start(monkeypatch):
    early = ["none.length", "none.pair.length", "none.pair"]
    cells = [*map(Cell.from_id, early), Cell()]
    ranks = {name: place for place, name in enumerate(early)}
    monkeypatch.setattr(planner, "ALONE", 1)
    (first, rest) = plan(cells, {}, [Host("a")], ranks=ranks).queue
    assert [cell.id for cell in first.cells] == early[:1]
    assert [cell.id for cell in rest.cells] == [*early[1:], "none"]
    (start,) = plan(cells, {}, [Host("a", gpus=1)], 1, ranks=ranks).queue
    assert [cell.id for cell in start.cells] == [*early, "none"]


def test_the_queue_holds_the_groups_of_all_shards_as_they_begin():
    cells = [Cell(page_size=size) for size in ("1", "4", "16", "64")]
    durations = {cell.id: seconds for cell, seconds in zip(cells, (9.0, 4.0, 3.0, 2.0), strict=True)}
    made = plan(cells, durations, TWO, start_seconds=1.0)
    assert [[group.cells[0] for group in shard.groups] for shard in made.shards] == [cells[:1], cells[1:]]
    assert [group.cells[0] for group in made.queue] == cells


def test_a_group_longer_than_its_share_is_split():
    start = [cell for cell in CELLS if cell.start_key == Cell.from_id("eagle3.s3.k4.n8.v2.p16").start_key]
    made = plan(start, {}, [Host("a", workers=4)], start_seconds=0.1)
    assert len(start) > 4 and all(shard.groups for shard in made.shards)
    assert made.seconds <= SPLIT * made.bound


def test_a_group_of_just_the_share_is_not_split():
    cells = [Cell(), Cell(batch="pair"), Cell(page_size="4")]
    made = plan(cells, dict.fromkeys((cell.id for cell in cells), 6.0), TWO, start_seconds=1.0)
    assert made.seconds == SPLIT * 10.0 == 13.0


def test_a_long_cell_cannot_be_split():
    made = plan([Cell(), Cell(page_size="4")], {"none": 50.0}, TWO, start_seconds=1.0)
    assert made.seconds == made.bound == 51.0


def test_measured_durations_replace_estimates():
    cells = [Cell(), Cell(batch="pair")]
    made = plan(cells, {"none": 3.0, "none.pair": 4.0}, [Host("a")], start_seconds=1.0)
    assert made.seconds == 8.0
    assert [cell.id for cell in cells_of(made)] == ["none.pair", "none"]


def test_gpu_lanes_hold_neighbouring_devices():
    made = plan(CELLS, {}, [Host("big", gpus=8), Host("small", gpus=3)], gpus=2)
    big = [("big", lane, (2 * lane, 2 * lane + 1)) for lane in range(4)]
    assert [(shard.host, shard.lane, shard.gpus) for shard in made.shards] == [*big, ("small", 0, (0, 1))]


def test_workers_share_a_set_of_gpus_and_neighbouring_lanes_share_none():
    made = plan(CELLS, {}, [Host("big", gpus=2, workers=2)], gpus=1)
    assert [(shard.lane, shard.gpus) for shard in made.shards] == [(0, (0,)), (1, (1,)), (2, (0,)), (3, (1,))]
    assert sorted(cells_of(made)) == sorted(CELLS)


def test_as_dict_is_json():
    made = plan([Cell(), Cell(page_size="4")], {}, [Host("a")], start_seconds=0.5)
    groups = [{"seconds": 0.8, "cells": ["none"]}, {"seconds": 0.8, "cells": ["none.p4"]}]
    shard = {"host": "a", "lane": 0, "gpus": [], "seconds": 1.6, "groups": groups}
    whole = {"schema": 1, "gpus": 0, "seconds": 1.6, "bound": 1.6, "shards": [shard]}
    assert json.loads(json.dumps(made.as_dict())) == whole


def test_seconds_of_a_plan_are_milliseconds_exactly():
    made = plan([Cell(), Cell(page_size="4")], {"none": 1.00049, "none.p4": 2.0}, TWO, start_seconds=0.0).as_dict()
    assert (made["seconds"], made["bound"], made["shards"][1]["seconds"]) == (2.0, 2.0, 1.0)
    odd = plan([Cell()], {"none": 1.00049}, [Host("a")], start_seconds=0.0).as_dict()
    assert (odd["seconds"], odd["bound"], odd["shards"][0]["groups"][0]["seconds"]) == (1.0, 1.0, 1.0)


def test_no_cells_make_an_empty_plan():
    made = plan([], {}, TWO)
    assert made.seconds == made.bound == 0 and cells_of(made) == []


@pytest.mark.parametrize(
    ("hosts", "gpus", "durations", "sentence"),
    [
        ([], 0, {}, "no host has a CPU worker; hosts: none"),
        ([Host("a", gpus=2)], 4, {}, "no host has 4 GPUs; hosts: a"),
        ([Host("a")], 0, {"none": -1.0}, "duration of none must be a positive number of seconds, got -1.0"),
        ([Host("a")], 0, {"none": float("nan")}, "duration of none must be a positive number of seconds, got nan"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(hosts, gpus, durations, sentence):
    with pytest.raises(ConfigError) as caught:
        plan([Cell()], durations, hosts, gpus)
    assert str(caught.value) == sentence


def test_more_shards_than_groups_are_refused():
    made = shard_plan([Cell(), Cell(page_size="4")], {}, 2)
    assert [(shard.host, len(shard.groups)) for shard in made.shards] == [("1/2", 1), ("2/2", 1)]
    wide = shard_plan([Cell(tp="2"), Cell(tp="2", page_size="4")], {}, 2, gpus=2)
    assert (wide.gpus, [shard.gpus for shard in wide.shards]) == (2, [(0, 1), (0, 1)])
    with pytest.raises(ConfigError, match=r"^shard count must be at most 2 for these cells, got 3$"):
        shard_plan([Cell(), Cell(page_size="4")], {}, 3)


@pytest.mark.parametrize("text", ["0/4", "5/4", "0/0", "2", "2/4/6", "a/4", "-1/4", "2/ 4", "1/10000", ""])
def test_a_shard_is_its_number_of_a_count(text):
    assert parse_shard("2/4") == (2, 4) and parse_shard("9999/9999") == (9999, 9999)
    with pytest.raises(ConfigError) as caught:
        parse_shard(text)
    assert str(caught.value).startswith("shard must be NUMBER/COUNT with") and f", got {text!r}" in str(caught.value)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(CELLS), min_size=1, max_size=40, unique=True),
    st.lists(st.floats(0.1, 100), min_size=40, max_size=40),
    st.integers(1, 6),
)
def test_plans_are_complete_and_within_the_lpt_bound(cells, seconds, workers):
    durations = {cell.id: value for cell, value in zip(cells, seconds, strict=False)}
    made = plan(cells, durations, [Host("a", workers=workers)])
    assert sorted(cells_of(made)) == sorted(cells)
    # Graham's bound: LPT ends within 2 - 1/n of the best plan of the same groups, which is at least `bound`.
    assert made.bound <= made.seconds + 1e-9 <= (2 - 1 / workers) * made.bound + 1e-6


def test_a_cell_that_needs_more_gpus_is_refused(monkeypatch):
    monkeypatch.setitem(GPUS[0], "none", 2)
    with pytest.raises(ConfigError) as caught:
        plan([Cell()], {}, [Host("a", gpus=8)], gpus=1)
    assert str(caught.value) == "cell none needs 2 GPUs, but the plan provides 1"
