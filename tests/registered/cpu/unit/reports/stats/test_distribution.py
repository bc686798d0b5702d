import numpy as np
import pytest
from scipy.stats import kstest

from specmatrix.reports.stats import ks_uniform, randomised_pit

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

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
    """Each sample may have a distribution of its own: all of them together are still uniform."""
    draw = np.random.default_rng(3)
    values = np.concatenate([transformed(draw, row, row, 40) for row in draw.dirichlet([0.3] * 6, size=50)])
    assert ks_uniform(values).p > 0.05


def test_ks_matches_scipy():
    values = np.random.default_rng(4).random(400)
    known = kstest(values, "uniform")
    fit = ks_uniform(values)
    assert fit.statistic == pytest.approx(known.statistic)
    assert fit.p == pytest.approx(known.pvalue, abs=0.01)


def test_rounding_above_one_is_one():
    assert randomised_pit([0.7], [0.3 + 1e-9], [1.0])[0] == 1.0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: randomised_pit([0.9], [0.4], [1.0]), "values reach from 1.3 to 1.3, allowed is 0 to 1"),
        (lambda: randomised_pit([0.9, 0.1], [0.4], [1.0]), "lengths differ: below has 2, at has 1, uniform has 1"),
        (lambda: ks_uniform([0.5] * 4), "number of values is 4, allowed is at least 5"),
        (lambda: ks_uniform([0.5] * 5 + [1.2]), "values reach from 0.5 to 1.2, allowed is 0 to 1"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
