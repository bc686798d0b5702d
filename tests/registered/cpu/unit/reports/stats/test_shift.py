"""The difference of two small samples: against scipy, and its error rates by simulation."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from specmatrix.reports.stats import mean_interval, pseudo_median, shift


@pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 9), (8, 8), (60, 7)])
def test_interval_and_p_values_are_those_of_welchs_test(n, m):
    chance = np.random.default_rng(n)
    base, head = chance.normal(0, 1, n), chance.normal(-0.5, 3, m)
    found = shift(list(base), list(head))
    for side, p in (("less", found.p_loss), ("greater", found.p_gain)):
        assert p == pytest.approx(ttest_ind(head, base, equal_var=False, alternative=side).pvalue, rel=1e-9)
    due = ttest_ind(head, base, equal_var=False).confidence_interval()
    assert found.interval == pytest.approx((due.low, due.high))
    assert found.estimate == pytest.approx(head.mean() - base.mean())


def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(1).normal(3, 1, 8)
    due = ttest_1samp(values, 0).confidence_interval()
    assert mean_interval(list(values)) == pytest.approx((due.low, due.high))


def test_an_outlier_hardly_moves_the_pseudo_median():
    values = [0.01 * place for place in range(-12, 12)]
    assert pseudo_median(values) == pytest.approx(-0.005)
    assert pseudo_median([*values[:-1], 50.0]) == pytest.approx(-0.005, abs=0.01)
    assert pseudo_median([7.0]) == 7


def test_the_pseudo_median_is_about_as_precise_as_the_mean():
    rows = np.random.default_rng(2).normal(0, 1, (2000, 16))
    assert np.std([pseudo_median(row) for row in rows]) == pytest.approx(rows.mean(1).std(), rel=0.05)


@pytest.mark.parametrize("starts", [2, 4, 8])
def test_one_interval_in_twenty_misses_the_shift(starts):
    chance = np.random.default_rng(2)
    found = [shift(list(chance.normal(0, 1, starts)), list(chance.normal(5, 2, starts))) for _ in range(1000)]
    missed = np.mean([not one.interval[0] <= 5 <= one.interval[1] for one in found])
    assert 0.01 <= missed <= 0.07


@pytest.mark.parametrize(("moved", "p_loss", "p_gain"), [(0.0, 1, 1), (-0.5, 0, 1), (0.5, 1, 0)])
def test_without_spread_a_difference_is_certain(moved, p_loss, p_gain):
    assert shift([1.0] * 8, [1.0 + moved] * 8) == (moved, (moved, moved), p_loss, p_gain)


def test_one_value_has_no_interval():
    for call in (lambda: shift([1.0], [1.0, 2.0]), lambda: shift([1.0, 2.0], [1.0]), lambda: mean_interval([1.0])):
        with pytest.raises(ValueError, match="number of values must be at least 2, got 1"):
            call()
    with pytest.raises(ValueError, match="number of values must be at least 1, got 0"):
        pseudo_median([])
