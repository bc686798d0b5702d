"""The shift of paired differences: against scipy, and its error rates by simulation."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from specmatrix.reports.stats import shift
from specmatrix.reports.stats.shift import LEAST_VALUES, MOST_EXACT

pytestmark = pytest.mark.register(est_seconds=2, stage="pr")


@pytest.mark.parametrize("n", [LEAST_VALUES, 7, 24, MOST_EXACT, MOST_EXACT + 1, 200])
def test_p_values_are_those_of_the_signed_rank_test(n):
    values = np.random.default_rng(n).normal(0.2, 1, n)
    found = shift(values)
    exact = "exact" if n <= MOST_EXACT else "asymptotic"
    for side, p in (("less", found.p_loss), ("greater", found.p_gain)):
        due = wilcoxon(values, alternative=side, method=exact, correction=n > MOST_EXACT).pvalue
        assert p == pytest.approx(due, rel=1e-9)


def test_the_normal_distribution_goes_on_where_the_exact_one_ends():
    values = np.random.default_rng(1).normal(0.3, 1, MOST_EXACT)
    one, more = shift(values), shift([*values, 0.3])
    assert more.p_gain == pytest.approx(one.p_gain, rel=0.5)
    assert np.ptp(more.interval) == pytest.approx(np.ptp(one.interval), rel=0.1)


def test_an_outlier_hardly_moves_the_estimate():
    values = [0.01 * place for place in range(-12, 12)]
    wild = [*values[:-1], 50.0]
    assert shift(values).estimate == pytest.approx(-0.005)
    assert shift(wild).estimate == pytest.approx(-0.005, abs=0.01)
    assert shift(wild).interval[1] < 0.1


@pytest.mark.parametrize("draw", ["normal", "heavy", "busy"])
def test_one_interval_in_twenty_misses_the_shift(draw):
    """Also with heavy tails and where half of the turns are disturbed."""
    chance = np.random.default_rng(2)
    noise = {
        "normal": lambda: chance.normal(0, 1, 24),
        "heavy": lambda: chance.standard_t(2, 24),
        "busy": lambda: chance.normal(0, np.where(chance.random(24) < 0.5, 0.2, 3)),
    }[draw]
    found = [shift(noise() + 5) for _ in range(1000)]
    missed = np.mean([not one.interval[0] <= 5 <= one.interval[1] for one in found])
    assert 0.025 <= missed <= 0.07


def test_nothing_is_significant_without_a_difference():
    found = shift([0.0] * 24)
    assert (found.estimate, found.interval, found.p_loss, found.p_gain) == (0, (0, 0), 1, 1)


def test_too_few_values_have_no_interval():
    with pytest.raises(ValueError, match="number of values must be at least 6, got 5"):
        shift([1.0] * 5)
