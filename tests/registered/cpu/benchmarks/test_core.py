"""The core that two share while they are compared."""

import os

import pytest

from benchmarks.core import loop, quickest_core

pytestmark = pytest.mark.register(est_seconds=0.1, tier="cpu", stage="pr")


def test_a_thread_stays_where_the_cost_is_least_and_is_free_again_behind_it():
    allowed = os.sched_getaffinity(0)
    for best, sign in ((max(allowed), -1), (min(allowed), 1)):
        with quickest_core(lambda sign=sign: sign * max(os.sched_getaffinity(0))):
            assert os.sched_getaffinity(0) == {best}
        assert os.sched_getaffinity(0) == allowed


def test_it_is_free_again_where_the_body_raises():
    allowed = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), quickest_core():
        raise ZeroDivisionError
    assert os.sched_getaffinity(0) == allowed and loop() > 0
