"""Bundles of graphs: swapped whole by width, bounded by number and by memory, and what is beyond it is refused."""

from __future__ import annotations

import pytest

from engine.device.bundles import Bundle, Bundles, Shape

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


def shape(width: int, batch: int = 1) -> Shape:
    return Shape(True, -1, batch, width, 256)


def bundles(most_bytes: int = 100, kept: int = 4) -> Bundles[int]:
    """Graphs are the bytes that they take."""
    return Bundles(lambda bundle: sum(size or 0 for size in bundle.graphs.values()), kept, most_bytes)


def counts(made: Bundles[int]) -> dict[int, int]:
    return {width: bundle.count for width, bundle in made}


def test_a_shape_is_captured_the_second_time_it_comes():
    made = bundles()
    assert [made.seen(shape(4)) for _ in range(3)] == [False, True, True]
    assert made.swap(4).graphs == {shape(4): None} and counts(made) == {4: 0}
    assert not made.keep(shape(4), 10)
    assert (counts(made), made.memory) == ({4: 1}, (1, 10))


def test_each_width_has_a_bundle_of_its_own():
    made = bundles()
    for one in (shape(4), shape(2), shape(4, batch=2)):
        made.seen(one)
        made.keep(one, 10)
    assert counts(made) == {2: 1, 4: 2} and made.memory == (3, 30)
    narrow = made.swap(2)
    assert list(counts(made)) == [4, 2] and made.swap(2) is narrow


def test_a_full_bundle_forgets_its_oldest_shape_and_leaves_other_bundles_alone():
    made = bundles(kept=2)
    made.seen(shape(2))
    for batch in (1, 2, 4):
        made.seen(shape(4, batch))
    assert [one.batch for one in made.swap(4).graphs] == [2, 4] and list(made.swap(2).graphs) == [shape(2)]
    made.seen(shape(4, 2))
    made.seen(shape(4, 8))
    assert [one.batch for one in made.swap(4).graphs] == [2, 8]


def test_beyond_the_bytes_the_bundle_used_longest_ago_is_dropped_whole():
    made = bundles(most_bytes=100)
    for width, batch in ((2, 1), (2, 2), (4, 1)):
        assert not made.keep(shape(width, batch), 30)
    made.swap(2)
    assert made.keep(shape(8), 40)
    assert (counts(made), made.memory, made.dropped) == ({2: 2, 8: 1}, (3, 100), 1)
    assert not made.seen(shape(4)) and made.seen(shape(2))


def test_a_bundle_that_alone_is_too_much_starts_again():
    made = bundles(most_bytes=100)
    for batch in (1, 2):
        made.keep(shape(4, batch), 60)
    assert (counts(made), made.memory, made.dropped) == ({}, (0, 0), 1)
    assert [made.seen(shape(4)) for _ in range(2)] == [False, True]


def test_a_graph_that_alone_is_too_much_is_refused_for_good():
    made = bundles(most_bytes=100)
    made.seen(shape(4))
    assert made.keep(shape(4), 101)
    assert [made.seen(shape(4)) for _ in range(3)] == [False] * 3
    assert made.memory == (0, 0) and not made.seen(shape(4, 2)) and made.seen(shape(4, 2))


def test_a_bundle_without_graphs_holds_nothing():
    bundle: Bundle[int] = Bundle(bytes=7)
    assert bundle.count == 0
    made = bundles(kept=1)
    made.keep(shape(4), 10)
    made.seen(shape(4, 2))
    assert made.memory == (0, 0)
