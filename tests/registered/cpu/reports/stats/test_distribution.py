import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from reports.stats import chi_square, ks_uniform, randomised_pit

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

SHARES = [0.5, 0.25, 0.125, 0.125]


def test_chi_square_is_pearsons():
    observed = [480, 270, 130, 120]
    fit, known = chi_square(observed, SHARES), chisquare(observed, [500, 250, 125, 125])
    assert (fit.statistic, fit.p, fit.freedom) == (pytest.approx(known.statistic), pytest.approx(known.pvalue), 3)


def test_rare_tokens_are_pooled():
    """Of 100 draws the last three are expected 4, 3 and 3 times; together they are one group."""
    fit = chi_square([50, 40, 4, 3, 3], [0.5, 0.4, 0.04, 0.03, 0.03])
    assert (fit.statistic, fit.p, fit.freedom) == (0.0, 1.0, 2)


def test_a_rest_too_rare_for_a_group_joins_the_last():
    fit = chi_square([59, 39, 2], [0.58, 0.40, 0.02])
    assert fit.freedom == 1


def test_an_impossible_token_is_certain_evidence():
    fit = chi_square([90, 9, 1], [0.9, 0.1, 0.0])
    assert (fit.p, fit.statistic) == (0.0, float("inf"))


def test_a_token_that_cannot_come_and_did_not_come_is_fine():
    assert chi_square([90, 10, 0], [0.9, 0.1, 0.0]).p == 1.0


def test_chi_square_has_its_level_and_sees_a_bias_of_three_percent():
    draw = np.random.default_rng(6)
    biased = [0.53, 0.22, 0.125, 0.125]
    fair = [chi_square(draw.multinomial(2000, SHARES), SHARES).p for _ in range(400)]
    found = [chi_square(draw.multinomial(2000, biased), SHARES).p for _ in range(400)]
    assert np.mean(np.array(fair) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(found) <= 0.05) >= 0.7


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
        (lambda: chi_square([1], [0.5, 0.5]), "lengths differ: observed has 1, expected has 2"),
        (lambda: chi_square([5, 5], [0.5, 0.4]), "the probabilities sum to 0.9, allowed is 1 without negative ones"),
        (lambda: chi_square([5, 5], [1.5, -0.5]), "the probabilities sum to 1, allowed is 1 without negative ones"),
        (lambda: chi_square([4, 2], [0.5, 0.5]), "6 draws leave fewer than two groups that are expected 5 times"),
        (lambda: randomised_pit([0.9], [0.4], [1.0]), "values reach from 1.3 to 1.3, allowed is 0 to 1"),
        (lambda: randomised_pit([0.9, 0.1], [0.4], [1.0]), "lengths differ: below has 2, at has 1, uniform has 1"),
        (lambda: ks_uniform([0.5] * 4), "number of values is 4, allowed is at least 5"),
        (lambda: ks_uniform([0.5] * 5 + [1.2]), "values reach from 0.5 to 1.2, allowed is 0 to 1"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
