import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from specmatrix.reports.stats import detectable_drop, mcnemar, paired_difference, zero_count_bound

COUNTS = st.integers(0, 60)


@given(COUNTS, COUNTS)
def test_exact_mcnemar_is_the_binomial_test(lost, won):
    total = lost + won
    assert mcnemar(lost, won) == pytest.approx(binomtest(lost, total, 0.5, "greater").pvalue if total else 1.0)
    assert mcnemar(lost, won, "gain") == pytest.approx(binomtest(won, total, 0.5, "greater").pvalue if total else 1.0)
    assert mcnemar(lost, won, "two-sided") == pytest.approx(binomtest(lost, total, 0.5).pvalue if total else 1.0)


@pytest.mark.parametrize(
    ("lost", "won", "p"), [(0, 0, 1.0), (1, 0, 0.5), (5, 0, 1 / 32), (6, 1, 8 / 128), (3, 3, 42 / 64)]
)
def test_known_values(lost, won, p):
    assert mcnemar(lost, won) == p


def test_many_questions_stay_exact():
    assert mcnemar(700, 600) == pytest.approx(binomtest(700, 1300, 0.5, "greater").pvalue)


def simulate(draw, n, accuracy, churn, broken):
    """Lost and won questions if `churn` of the answers are redrawn and `broken` of the right ones become wrong."""
    lost = won = 0
    for _ in range(n):
        before = draw.random() < accuracy
        after = draw.random() < accuracy if draw.random() < churn else before
        after = after and draw.random() >= broken
        lost, won = lost + (before and not after), won + (after and not before)
    return lost, won


def test_false_alarms_and_power_are_those_that_were_measured():
    """200 questions, a 90 % model, 3 % churn: no false alarm, and a defect that breaks 5 % is seen in 89 % of runs."""
    draw = random.Random(3)
    assert sum(mcnemar(*simulate(draw, 200, 0.9, 0.03, 0.0)) <= 0.05 for _ in range(400)) / 400 <= 0.05
    seen = sum(mcnemar(*simulate(draw, 200, 0.9, 0.03, 0.05)) <= 0.05 for _ in range(400)) / 400
    assert seen == pytest.approx(0.89, abs=0.05)


def test_no_discordant_question_gives_the_exact_bound():
    assert paired_difference(0, 0, 200) == (-zero_count_bound(200), zero_count_bound(200))


@given(COUNTS, COUNTS, st.integers(120, 500))
def test_the_interval_holds_the_difference_and_turns_round(lost, won, n):
    low, high = paired_difference(lost, won, n)
    assert low <= (won - lost) / n <= high
    assert paired_difference(won, lost, n) == pytest.approx((-high, -low))


def test_the_interval_stays_within_what_rates_can_differ_by():
    assert paired_difference(0, 1, 1)[1] == 1.0 and paired_difference(1, 0, 1)[0] == -1.0


def test_the_interval_covers_as_promised():
    draw = random.Random(2)
    hits = 0
    for _ in range(500):
        lost, won = simulate(draw, 150, 0.8, 0.1, 0.05)
        low, high = paired_difference(lost, won, 150)
        hits += low <= -0.05 * 0.8 <= high
    assert hits / 500 >= 0.92


@pytest.mark.parametrize(
    ("good", "won", "n", "alpha", "fewest"),
    # By hand: 0.5 ** 7 < 0.01 < 0.5 ** 6, and 10 lost beside 1 won have p = 12 / 2048, 9 beside 1 have 11 / 1024.
    [(200, 0, 200, 0.01, 7), (150, 0, 1319, 0.05, 5), (190, 1, 200, 0.01, 10), (7, 0, 40, 0.01, 7)],
)
def test_the_detectable_drop_brings_losses_that_show_as_often_as_promised(good, won, n, alpha, fewest):
    drop = detectable_drop(good, won, n, alpha, 0.9)
    assert mcnemar(fewest, won) < alpha <= mcnemar(fewest - 1, won)
    assert binom.sf(fewest - 1, good, (drop * n + won) / good) == pytest.approx(0.9)


def test_the_drop_is_seen_in_runs_with_noise():
    """What is won by chance is lost by chance as well; that is no drop."""
    draw = random.Random(4)
    drop = detectable_drop(160, 4, 200, 0.05, 0.8)
    chance = (drop * 200 + 4) / 160
    seen = [mcnemar(sum(draw.random() < chance for _ in range(160)), 4) < 0.05 for _ in range(600)]
    assert sum(seen) / 600 == pytest.approx(0.8, abs=0.05)
    assert detectable_drop(160, 0, 200, 0.05, 0.8) < drop


@pytest.mark.parametrize(("good", "won", "n"), [(6, 0, 40), (9, 1, 10), (0, 3, 10)])
def test_what_would_not_show_has_no_detectable_drop(good, won, n):
    assert detectable_drop(good, won, n, 0.01, 0.8) is None


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mcnemar(-1, 2), "lost must be at least 0, got -1"),
        (lambda: mcnemar(1, -2), "won must be at least 0, got -2"),
        (lambda: paired_difference(3, 3, 5), r"lost \+ won must be between 0 and 5, got 6"),
        (lambda: paired_difference(0, 0, 0), "n must be at least 1, got 0"),
        (lambda: detectable_drop(0, 0, 0, 0.05, 0.8), "n must be at least 1, got 0"),
        (lambda: detectable_drop(4, 2, 5, 0.05, 0.8), r"good \+ won must be between 0 and 5, got 6"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
