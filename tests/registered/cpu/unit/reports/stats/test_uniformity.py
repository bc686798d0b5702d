import numpy as np
import pytest
from scipy.stats import kstest

from specmatrix.reports.stats import ks_uniform, randomised_pit

SHARES = [0.5, 0.25, 0.125, 0.125]


def transformed(draw, shares, claimed, count):
    """PIT values of draws from `shares` under the claim `claimed`."""
    tokens = draw.choice(len(shares), size=count, p=shares)
    before = np.concatenate([[0.0], np.cumsum(claimed)[:-1]])
    return randomised_pit(before[tokens], np.asarray(claimed)[tokens], draw.random(count))


def test_pit_of_the_right_distribution_is_uniform_and_of_a_wrong_one_is_not():
    draw = np.random.default_rng(12)
    fair = [ks_uniform(transformed(draw, SHARES, SHARES, 500)).p for _ in range(300)]
    wrong = [ks_uniform(transformed(draw, [0.6, 0.15, 0.125, 0.125], SHARES, 500)).p for _ in range(100)]
    assert np.mean(np.array(fair) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(wrong) <= 0.05) >= 0.95


def test_pit_mixes_contexts():
    """Each sample may have its own distribution; all of them together are still uniform."""
    draw = np.random.default_rng(3)
    values = np.concatenate([transformed(draw, row, row, 40) for row in draw.dirichlet([0.3] * 6, size=50)])
    assert ks_uniform(values).p > 0.05


def test_the_statistic_is_the_largest_distance_to_the_diagonal():
    """Five values below 0.2: the empirical distribution is 1 where the uniform one is 0.16."""
    fit = ks_uniform(np.array([0.02, 0.05, 0.08, 0.11, 0.16]))
    assert fit.statistic == pytest.approx(0.84)
    # All five within 0.16 of one end: 2 * 0.16 ** 5.
    assert fit.p == pytest.approx(2 * 0.16**5)


@pytest.mark.parametrize("count", [5, 40, 600])
@pytest.mark.parametrize("power", [1.0, 1.1, 1.3, 2.0])
def test_the_test_is_that_of_scipy(count, power):
    values = np.random.default_rng(count).random(count) ** power
    fit, exact = ks_uniform(values), kstest(values, "uniform")
    assert fit.statistic == pytest.approx(exact.statistic)
    assert exact.pvalue * (1 - 1e-9) <= fit.p <= exact.pvalue * (1.0001 if exact.pvalue < 0.1 else 1.15)


def test_rounding_above_one_is_one():
    assert randomised_pit([0.7], [0.3 + 1e-9], [1.0])[0] == 1.0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: randomised_pit([0.9], [0.4], [1.0]), "values must be between 0 and 1, got 1.3 to 1.3"),
        (lambda: randomised_pit([0.9, 0.1], [0.4], [1.0]), "must have the same shape"),
        (lambda: ks_uniform(np.full(4, 0.5)), "number of values must be at least 5, got 4"),
        (lambda: ks_uniform(np.array([0.5] * 5 + [1.2])), "values must be between 0 and 1, got 0.5 to 1.2"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
