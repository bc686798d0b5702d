"""Bundles of graphs: swapped whole by width, bounded by number and by memory, and what is in use stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.device.cuda_graphs import GraphCache, GraphShape


def shape(width: int, batch: int = 1) -> GraphShape:
    return GraphShape(True, -1, batch, width, 256)


def bundles(max_bytes: int = 100, kept: int = 4, idle_rounds: int = 50) -> GraphCache[int]:
    """A graph is represented by its size in bytes."""
    return GraphCache(lambda bundle: sum(size or 0 for size in bundle.graphs.values()), kept, max_bytes, idle_rounds)


def ran(made: GraphCache[int], one: GraphShape, size: int) -> str:
    """A round as in Graphs.run."""
    if not made.seen(one):
        return "eager"
    if made.swap(one.width).graphs[one] is not None:
        return "replayed"
    made.keep(one, size)
    assert made.memory[1] <= made.max_bytes
    return "captured"


def counts(made: GraphCache[int]) -> dict[int, int]:
    return {width: bundle.count for width, bundle in made}


def test_a_shape_is_captured_the_second_time_it_comes():
    made = bundles()
    assert [made.seen(shape(4)) for _ in range(3)] == [False, True, True]
    assert made.swap(4).graphs == {shape(4): None} and counts(made) == {4: 0}
    assert not made.keep(shape(4), 10)
    assert (counts(made), made.memory) == ({4: 1}, (1, 10))


def test_a_full_bundle_forgets_its_oldest_shape_and_leaves_other_bundles_alone():
    made = bundles(kept=2)
    made.seen(shape(2))
    for batch in (1, 2, 4):
        made.seen(shape(4, batch))
    assert [one.batch for one in made.swap(4).graphs] == [2, 4] and list(made.swap(2).graphs) == [shape(2)]
    made.seen(shape(4, 2))
    made.seen(shape(4, 8))
    assert [one.batch for one in made.swap(4).graphs] == [2, 8]


def test_a_full_bundle_of_graphs_forgets_only_one_that_has_rested():
    made = bundles(kept=2, idle_rounds=6)
    for batch in (1, 1, 2, 2, 4, 4):
        ran(made, shape(4, batch), 10)
    assert [one.batch for one in made.swap(4).graphs] == [1, 2], "the third shape runs without a graph"
    assert [ran(made, shape(4, batch), 10) for batch in (2, 4, 4)] == ["replayed", "eager", "captured"]
    assert [one.batch for one in made.swap(4).graphs] == [2, 4]


def test_a_graph_that_has_rested_makes_room_in_its_bundle():
    made = bundles(max_bytes=100, idle_rounds=6)
    for batch in (1, 1, 2, 2, 4, 4):
        ran(made, shape(4, batch), 40)
    assert counts(made) == {4: 2}, "a third graph of the average size would be too much"
    assert [ran(made, shape(4, batch), 40) for batch in (2, 4, 4)] == ["replayed", "captured", "replayed"]
    assert [one.batch for one, graph in made.swap(4).graphs.items() if graph] == [2, 4]


def test_an_idle_bundle_is_dropped_beyond_the_memory_bound():
    made = bundles(max_bytes=100, idle_rounds=5)
    for width, batch in ((2, 1), (2, 2), (4, 1)):
        assert [ran(made, shape(width, batch), 30) for _ in range(2)] == ["eager", "captured"]
    made.seen(shape(2))
    assert [ran(made, shape(8), 40) for _ in range(3)] == ["eager"] * 3, "two bundles are in use, and 40 is too much"
    assert [ran(made, shape(8), 40), ran(made, shape(2), 30)] == ["captured", "replayed"]
    assert (counts(made), made.memory, made.dropped) == ({8: 1, 2: 2}, (3, 100), 1)
    assert not made.seen(shape(4)) and made.seen(shape(2))


def test_the_graph_that_is_too_much_beside_those_in_use_runs_without_from_then_on():
    """A pool shrinks only as a whole, so the remaining graphs are captured again."""
    made = bundles(max_bytes=100)
    cycle = [(1, 10), (2, 10), (4, 90)]
    rounds = [[ran(made, shape(4, batch), size) for batch, size in cycle] for _ in range(4)]
    assert rounds == [["eager"] * 3, ["captured"] * 3, ["captured", "captured", "eager"], ["replayed"] * 2 + ["eager"]]
    assert (counts(made), made.memory, made.dropped) == ({4: 2}, (2, 20), 1)


def test_a_refused_capture_is_retried_once_a_bundle_has_freed_memory():
    made = bundles(max_bytes=100, kept=6, idle_rounds=20)
    for batch in range(1, 7):
        ran(made, shape(2, batch), 10), ran(made, shape(2, batch), 10)
    assert [ran(made, shape(4, batch), size) for batch, size in ((1, 20), (1, 20), (2, 35), (2, 35))][-1] == "captured"
    assert [ran(made, shape(4, batch), size) for batch, size in ((1, 20), (2, 35))] == ["captured", "eager"]
    for _ in range(14):
        ran(made, shape(4, 1), 20)
    assert counts(made) == {2: 6, 4: 1}
    assert [ran(made, shape(8), 40) for _ in range(2)] == ["eager", "captured"] and counts(made) == {4: 1, 8: 1}
    assert ran(made, shape(4, 2), 35) == "captured" and made.memory == (3, 95)


def test_a_graph_that_alone_is_too_much_is_refused():
    made = bundles(max_bytes=100)
    assert [ran(made, shape(4), 101) for _ in range(4)] == ["eager", "captured", "eager", "eager"]
    assert made.memory == (0, 0) and not made.seen(shape(4, 2)) and made.seen(shape(4, 2))


SHAPES = st.tuples(st.sampled_from([2, 4, 8]), st.integers(1, 6)).map(lambda pair: shape(*pair))
SIZES = st.dictionaries(SHAPES, st.integers(1, 120))
CYCLES = st.lists(SHAPES, min_size=1, max_size=40)


@given(before=CYCLES, cycle=CYCLES, sizes=SIZES, kept=st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_what_repeats_itself_soon_captures_nothing_any_more(before, cycle, sizes, kept):
    """Holds after any history and for any bounds, once each shape of the cycle was tried."""
    made = bundles(max_bytes=100, kept=kept)
    turns = made.idle_rounds // len(cycle) + 2 * len(set(cycle)) + 3
    for one in before * 3 + cycle * turns:
        ran(made, one, sizes.get(one, 20))
    assert "captured" not in [ran(made, one, sizes.get(one, 20)) for one in cycle * 2]


@given(shapes=st.lists(SHAPES, max_size=400), sizes=SIZES, kept=st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_the_bounds_hold_after_every_round(shapes, sizes, kept):
    made = bundles(max_bytes=100, kept=kept, idle_rounds=7)
    for one in shapes:
        ran(made, one, sizes.get(one, 20))
        assert made.memory[1] <= 100 and all(len(bundle.graphs) <= kept for _, bundle in made)
