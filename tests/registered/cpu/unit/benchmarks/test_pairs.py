"""Interleaved timing: order, count, and the ratio of each pair."""

import pytest

from specmatrix.benchmarks.pairs import Pairs, interleave, own_time


def test_two_sides_are_interleaved_and_alternate_in_front():
    calls = []
    pairs = interleave(lambda: calls.append("a"), lambda: calls.append("b"), pairs=4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba"
    assert len(pairs.ours) == len(pairs.theirs) == 4


def test_a_turn_may_repeat_the_inherited_text():
    times = iter(range(100))
    pairs = interleave(lambda: next(times), lambda: 2 * next(times), pairs=2, clock=own_time)
    assert pairs == Pairs((2, 5), (6, 8))


def test_ratios_are_theirs_over_ours_pair_by_pair():
    pairs = Pairs(ours=(1.0, 2.0, 4.0), theirs=(2.0, 8.0, 4.0))
    assert pairs.ratios == (2.0, 4.0, 1.0)
    metric = pairs.metric("m", goal=2.5, scale=2.0, note="n")
    assert (metric.ratio, metric.low, metric.high, metric.pairs) == (4.0, 2.0, 8.0, 3)
    assert metric.spread == pytest.approx(6.0 / 4.0)
