"""The clock around model forwards."""

import pytest

from specmatrix.benchmarks.overhead import GOAL, CallTimer, share
from specmatrix.benchmarks.subjects import engine


def test_nested_calls_count_once_and_results_pass_through():
    clock = CallTimer()
    inner = clock.wrap(lambda x: x + 1)
    outer = clock.wrap(lambda x: inner(x) * 2)
    assert outer(3) == 8
    once = clock.seconds
    assert once > 0
    with pytest.raises(TypeError):
        outer(None)
    assert clock.seconds > once, "a call that fails is counted and leaves the clock usable"
    assert inner(1) == 2


def test_the_share_of_a_real_engine_is_a_share():
    metric = share(engine(), "work")
    assert 0 < metric.low <= metric.ratio <= metric.high < 1
    assert (metric.goal, metric.better, metric.name) == (GOAL, "lower", "work")
