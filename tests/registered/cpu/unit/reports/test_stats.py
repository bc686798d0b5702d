"""The statistics of reports against scipy, against published tables, and at their edges.

Where scipy has the same test, its error rates are not simulated again.
"""

import random
from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.special import betaln

from specmatrix.reports import stats

FEW = st.integers(0, 60)
RATES = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
EMITTED = [64, 128, 100, 90, 110, 70, 128, 128, 96, 81]
ROUNDS = [20, 41, 33, 30, 35, 25, 40, 44, 31, 29]
SHARES = [0.5, 0.25, 0.125, 0.125]


@given(st.lists(st.floats(0, 1), max_size=30))
def test_discoveries_are_those_of_adjusted_p_values(values):
    adjusted = scipy_stats.false_discovery_control(values) if values else []
    assume(all(abs(value - 0.05) > 1e-12 for value in adjusted))
    assert stats.benjamini_hochberg(values, 0.05) == [bool(value <= 0.05) for value in adjusted]


def test_discoveries_at_the_edges():
    assert stats.benjamini_hochberg([0.05], 0.05) == [True]
    assert stats.benjamini_hochberg([0.04, 0.9], 0.05) == [False, False]


def test_prompts_that_change_alike_have_no_interval_and_the_p_value_of_a_sign_test():
    slower = [rounds * 1.02 for rounds in ROUNDS]
    for prompts, p in ((2, 0.25), (9, 0.5**9), (10, 0.5**10)):
        change = stats.ratio_change((EMITTED[:prompts], ROUNDS[:prompts]), (EMITTED[:prompts], slower[:prompts]))
        assert change.change == pytest.approx(1 / 1.02 - 1)
        assert (change.interval, change.p_loss, change.p_gain) == (None, p, 1.0)
    many = stats.ratio_change((EMITTED * 2, ROUNDS * 2), (EMITTED * 2, slower * 2))
    assert (many.interval, many.p_loss) == (None, pytest.approx(1 / 2001))


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_too_few_prompts_cannot_distinguish_a_loss_from_a_gain(factor):
    for prompts in range(2, 8):
        moved = [rounds * (factor + 0.01 * index) for index, rounds in enumerate(ROUNDS[:prompts])]
        low, high = stats.ratio_change((EMITTED[:prompts], ROUNDS[:prompts]), (EMITTED[:prompts], moved)).interval
        assert (low <= 0 <= high) is (prompts < 6)


def test_only_prompts_that_changed_count_and_long_ones_weigh_more():
    same = stats.ratio_change((EMITTED, ROUNDS), (EMITTED, ROUNDS))
    assert (same.change, same.interval, same.p_loss, same.p_gain) == (0.0, (0.0, 0.0), 1.0, 1.0)
    one = stats.ratio_change((EMITTED, ROUNDS), (EMITTED, [30, *ROUNDS[1:]]))
    assert one.interval is not None and one.p_loss == 0.5
    # A ratio of sums is not the mean of ratios: (10 + 300) / (10 + 100), not (1 + 3) / 2.
    change = stats.ratio_change(([10, 300], [10, 100]), ([10, 300], [10, 150]))
    assert change.change == pytest.approx((310 / 160) / (310 / 110) - 1)


def prompts(draw, true_change, count=80):
    """Paired emitted and rounds of two runs with 3 % noise per prompt."""
    emitted = draw.integers(60, 129, count).astype(float)
    base = emitted / (3 * draw.normal(1, 0.15, count))
    head = base / (1 + true_change) * draw.normal(1, 0.03, count)
    return (emitted, base), (emitted, head)


def test_false_alarms_and_power_of_the_paired_bootstrap_are_those_that_were_measured():
    draw = np.random.default_rng(1)
    quiet = [stats.ratio_change(*prompts(draw, 0.0), resamples=400).p_loss <= 0.01 for _ in range(150)]
    seen = [stats.ratio_change(*prompts(draw, -0.02), resamples=400).p_loss <= 0.01 for _ in range(150)]
    assert sum(quiet) / 150 <= 0.04 and sum(seen) / 150 >= 0.95


def test_the_paired_interval_is_that_of_scipy_and_repeats():
    (emitted, base), (_, head) = prompts(np.random.default_rng(6), -0.03)

    def change(rounds, other, axis):
        return rounds.sum(axis) / other.sum(axis) - 1

    known = scipy_stats.bootstrap((base, head), change, paired=True, n_resamples=4000, method="percentile", rng=1)
    found = stats.ratio_change((emitted, base), (emitted, head))
    assert found.interval == pytest.approx(tuple(known.confidence_interval), abs=1e-3)
    assert found.change == pytest.approx(base.sum() / head.sum() - 1)
    assert found == stats.ratio_change((emitted, base), (emitted, head))


@given(FEW, FEW)
def test_exact_mcnemar_is_the_binomial_test(lost, won):
    total = lost + won
    for side, hits, name in (("loss", lost, "greater"), ("gain", won, "greater"), ("two-sided", lost, "two-sided")):
        known = scipy_stats.binomtest(hits, total, 0.5, name).pvalue if total else 1.0
        assert stats.mcnemar(lost, won, side) == pytest.approx(known)


def test_mcnemar_of_many_questions_stays_exact():
    assert stats.mcnemar(700, 600) == pytest.approx(scipy_stats.binomtest(700, 1300, 0.5, "greater").pvalue)
    assert stats.mcnemar(6, 1) == 8 / 128


@given(FEW, FEW, st.integers(120, 500))
def test_the_interval_of_paired_answers_holds_the_difference_and_turns_round(lost, won, n):
    low, high = stats.paired_difference(lost, won, n)
    assert low <= (won - lost) / n <= high
    assert stats.paired_difference(won, lost, n) == pytest.approx((-high, -low))
    assert stats.paired_difference(0, 0, n) == (-stats.zero_count_bound(n), stats.zero_count_bound(n))
    assert stats.paired_difference(0, 1, 1)[1] == 1.0


def test_the_interval_of_paired_answers_covers_as_promised():
    draw = random.Random(2)
    hits = 0
    for _ in range(500):
        changes = draw.choices((-1, 1, 0), (0.12, 0.08, 0.8), k=150)
        low, high = stats.paired_difference(changes.count(-1), changes.count(1), 150)
        hits += low <= -0.04 <= high
    assert hits / 500 >= 0.92


@pytest.mark.parametrize(
    ("good", "won", "n", "alpha", "fewest"),
    # By hand: 0.5 ** 7 < 0.01 < 0.5 ** 6, and 10 lost beside 1 won have p = 12 / 2048, 9 beside 1 have 11 / 1024.
    [(200, 0, 200, 0.01, 7), (150, 0, 1319, 0.05, 5), (190, 1, 200, 0.01, 10), (7, 0, 40, 0.01, 7)],
)
def test_the_detectable_drop_brings_losses_that_show_as_often_as_promised(good, won, n, alpha, fewest):
    drop = stats.detectable_drop(good, won, n, alpha, 0.9)
    assert stats.mcnemar(fewest, won) < alpha <= stats.mcnemar(fewest - 1, won)
    assert scipy_stats.binom.sf(fewest - 1, good, (drop * n + won) / good) == pytest.approx(0.9)


@pytest.mark.parametrize(("good", "won", "n"), [(6, 0, 40), (9, 1, 10), (0, 3, 10)])
def test_what_would_not_show_has_no_detectable_drop(good, won, n):
    assert stats.detectable_drop(good, won, n, 0.01, 0.8) is None


def test_the_detectable_drop_of_the_sequential_test():
    """Its last value is at least its smallest one, so the drop shows at least as often as promised."""
    drop = stats.detectable_drop(160, 4, 200, 0.01, 0.8, lambda lost, won: 1 / stats.loss_evidence(lost, won))
    assert drop > stats.detectable_drop(160, 4, 200, 0.01, 0.8)
    draw, chance = random.Random(7), (drop * 200 + 4) / 160
    seen = 0
    for _ in range(400):
        losses = [True] * sum(draw.random() < chance for _ in range(160)) + [False] * 4
        draw.shuffle(losses)
        seen += stats.sequential_mcnemar(losses) < 0.01
    assert 0.77 <= seen / 400 <= 0.9


@given(st.integers(0, 80), st.integers(0, 80))
def test_sequential_evidence_is_the_integral_over_losing_rates(lost, won):
    known = scipy_stats.beta.logsf(0.5, lost + 1, won + 1) + betaln(lost + 1, won + 1) + (lost + won + 1) * log(2)
    assert stats.loss_evidence(lost, won) == pytest.approx(exp(known), rel=1e-6)


@given(st.lists(st.booleans(), max_size=60))
def test_more_answers_never_take_a_finding_back(losses):
    values = [stats.sequential_mcnemar(losses[:n]) for n in range(len(losses) + 1)]
    assert values == sorted(values, reverse=True) and values[-1] > 0 and values[0] == 1
    assert stats.sequential_mcnemar([True] * 9) == 10 / 1023


@given(RATES)
def test_wilson_is_that_of_scipy(case):
    exact = scipy_stats.binomtest(*case).proportion_ci(method="wilson")
    assert stats.wilson(*case) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_the_ends_of_wilson_are_exact():
    assert stats.wilson(0, 7)[0] == 0.0 and stats.wilson(7, 7)[1] == 1.0


def test_nothing_in_200_bounds_the_rate_below_one_and_a_half_points():
    assert stats.zero_count_bound(200) == pytest.approx(0.01487, abs=1e-5)
    assert (1 - stats.zero_count_bound(200)) ** 200 == pytest.approx(0.05)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 9), (60, 7)])
def test_a_shift_is_that_of_welchs_test(n, m):
    chance = np.random.default_rng(n)
    base, head = chance.normal(0, 1, n), chance.normal(-0.5, 3, m)
    found = stats.shift(list(base), list(head))
    for side, p in (("less", found.p_loss), ("greater", found.p_gain)):
        assert p == pytest.approx(scipy_stats.ttest_ind(head, base, equal_var=False, alternative=side).pvalue, rel=1e-9)
    due = scipy_stats.ttest_ind(head, base, equal_var=False).confidence_interval()
    assert found.interval == pytest.approx((due.low, due.high))
    assert found.estimate == pytest.approx(head.mean() - base.mean())
    due = scipy_stats.ttest_1samp(head, 0).confidence_interval()
    assert stats.mean_interval(list(head)) == pytest.approx((due.low, due.high))


@pytest.mark.parametrize(("moved", "p_loss", "p_gain"), [(0.0, 1, 1), (-0.5, 0, 1), (0.5, 1, 0)])
def test_without_spread_a_difference_is_certain(moved, p_loss, p_gain):
    assert stats.shift([1.0] * 8, [1.0 + moved] * 8) == (moved, (moved, moved), p_loss, p_gain)


def test_the_pseudo_median_is_as_precise_as_the_mean_and_an_outlier_hardly_moves_it():
    values = [0.01 * place for place in range(-12, 12)]
    assert stats.pseudo_median(values) == pytest.approx(-0.005)
    assert stats.pseudo_median([*values[:-1], 50.0]) == pytest.approx(-0.005, abs=0.01)
    rows = np.random.default_rng(2).normal(0, 1, (2000, 16))
    assert np.std([stats.pseudo_median(row) for row in rows]) == pytest.approx(rows.mean(1).std(), rel=0.05)


def transformed(draw, shares, claimed, count):
    """PIT values of draws from `shares` under the claim `claimed`."""
    tokens = draw.choice(len(shares), size=count, p=shares)
    before = np.concatenate([[0.0], np.cumsum(claimed)[:-1]])
    return stats.randomised_pit(before[tokens], np.asarray(claimed)[tokens], draw.random(count))


def test_pit_of_the_right_distribution_is_uniform_and_of_a_wrong_one_is_not():
    draw = np.random.default_rng(12)
    fair = [stats.ks_uniform(transformed(draw, SHARES, SHARES, 500)).p for _ in range(300)]
    wrong = [stats.ks_uniform(transformed(draw, [0.6, 0.15, 0.125, 0.125], SHARES, 500)).p for _ in range(100)]
    assert np.mean(np.array(fair) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(wrong) <= 0.05) >= 0.95
    # Each sample may have its own distribution; all of them together are still uniform.
    mixed = [transformed(draw, row, row, 40) for row in draw.dirichlet([0.3] * 6, size=50)]
    assert stats.ks_uniform(np.concatenate(mixed)).p > 0.05


@pytest.mark.parametrize("count", [5, 40, 600])
@pytest.mark.parametrize("power", [1.0, 1.3, 2.0])
def test_the_test_of_uniformity_is_that_of_scipy(count, power):
    values = np.random.default_rng(count).random(count) ** power
    fit, exact = stats.ks_uniform(values), scipy_stats.kstest(values, "uniform")
    assert fit.statistic == pytest.approx(exact.statistic)
    assert exact.pvalue * (1 - 1e-9) <= fit.p <= exact.pvalue * (1.0001 if exact.pvalue < 0.1 else 1.15)


def test_rounding_above_one_is_one():
    assert stats.randomised_pit([0.7], [0.3 + 1e-9], [1.0])[0] == 1.0


PAIR = ([1, 2], [1, 1])
BAD = [
    (lambda: stats.ratio_change(PAIR, ([1], [1])), "number of prompts must be at least 2, got 1"),
    (lambda: stats.ratio_change(PAIR, ([1, 2], [1])), "number of prompts must be at least 2, got 1"),
    (lambda: stats.ratio_change(PAIR, ([1, 2], [1, 0])), "all numbers must be above 0, got 0"),
    (lambda: stats.ratio_change(PAIR, ([1, 2, 3], [1, 1, 1])), "must have the same shape"),
    (lambda: stats.mcnemar(-1, 2), "lost must be at least 0, got -1"),
    (lambda: stats.mcnemar(1, -2), "won must be at least 0, got -2"),
    (lambda: stats.paired_difference(3, 3, 5), r"lost \+ won must be between 0 and 5, got 6"),
    (lambda: stats.paired_difference(0, 0, 0), "n must be at least 1, got 0"),
    (lambda: stats.detectable_drop(0, 0, 0, 0.05, 0.8), "n must be at least 1, got 0"),
    (lambda: stats.detectable_drop(4, 2, 5, 0.05, 0.8), r"good \+ won must be between 0 and 5, got 6"),
    (lambda: stats.wilson(1, 0), "n must be at least 1, got 0"),
    (lambda: stats.wilson(6, 5), "successes must be between 0 and 5, got 6"),
    (lambda: stats.zero_count_bound(0), "n must be at least 1, got 0"),
    (lambda: stats.loss_evidence(-1, 2), "lost must be at least 0, got -1"),
    (lambda: stats.loss_evidence(1, -2), "won must be at least 0, got -2"),
    (lambda: stats.shift([1.0], [1.0, 2.0]), "number of values must be at least 2, got 1"),
    (lambda: stats.shift([1.0, 2.0], [1.0]), "number of values must be at least 2, got 1"),
    (lambda: stats.mean_interval([1.0]), "number of values must be at least 2, got 1"),
    (lambda: stats.pseudo_median([]), "number of values must be at least 1, got 0"),
    (lambda: stats.randomised_pit([0.9], [0.4], [1.0]), "values must be between 0 and 1, got 1.3 to 1.3"),
    (lambda: stats.randomised_pit([0.9, 0.1], [0.4], [1.0]), "must have the same shape"),
    (lambda: stats.ks_uniform(np.full(4, 0.5)), "number of values must be at least 5, got 4"),
    (lambda: stats.ks_uniform(np.array([0.5] * 5 + [1.2])), "values must be between 0 and 1, got 0.5 to 1.2"),
]


@pytest.mark.parametrize(("call", "sentence"), BAD, ids=range(len(BAD)))
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_a_law_that_is_off_is_seen_as_often_as_promised_and_no_further_away_than_it_is():
    draw = np.random.default_rng(6)
    law = np.sort(draw.dirichlet(np.full(40, 0.7)))[::-1]
    right = [stats.law_fit(draw.multinomial(200, law).tolist(), law.tolist(), 1e-3) for _ in range(400)]
    assert np.mean([fit.p < 0.1 for fit in right]) == pytest.approx(0.1, abs=0.05)
    far = right[0].detectable
    off = law.copy()
    off[0], off[1:] = off[0] + far, off[1:] * (1 - far / off[1:].sum())
    wrong = [stats.law_fit(draw.multinomial(200, off / off.sum()).tolist(), law.tolist(), 1e-3) for _ in range(400)]
    assert np.mean([fit.p < 1e-3 for fit in wrong]) >= 0.75
    with pytest.raises(ValueError, match="number of bins must be at least 2, got 1"):
        stats.law_fit([1, 2], [0.5, 0.5], 1e-3)


@pytest.mark.parametrize("loss", [0.05, 0.25])
@pytest.mark.parametrize("raised", [1, 20])
def test_a_variation_is_bounded_from_below_and_one_beyond_a_limit_is_seen_as_often_as_promised(loss, raised):
    draw = np.random.default_rng(8)
    law = np.sort(draw.dirichlet(np.full(40, 0.7)))[::-1]
    up = np.arange(40) % (40 // raised) == 0

    def bounds(variation: float) -> list[stats.LeastVariation]:
        off = law * np.where(up, 1 + variation / law[up].sum(), 1 - variation / law[~up].sum())
        halves = [draw.multinomial(500, off / off.sum()).tolist() for _ in range(200)]
        return [stats.least_variation(*pair, law.tolist(), 1e-2) for pair in pairwise(halves)]

    true = bounds(loss)
    assert np.mean([one.at_least > loss for one in true]) <= 2e-2 and min(one.at_least for one in true) >= 0
    beyond = bounds(loss + true[0].margin)
    assert np.mean([one.at_least > loss for one in beyond]) >= stats.POWER
