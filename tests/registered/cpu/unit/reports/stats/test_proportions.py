import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency

from specmatrix.reports.stats import (
    difference_interval,
    two_rate_test,
    wilson,
    zero_count_bound,
)

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_the_table_of_newcombe_1998(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(COUNTS)
def test_wilson_holds_the_rate_and_stays_inside(case):
    successes, n = case
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    flipped_low, flipped_high = wilson(n - successes, n)
    assert (1 - flipped_high, 1 - flipped_low) == pytest.approx((low, high))


@given(COUNTS)
def test_wilson_is_that_of_scipy(case):
    successes, n = case
    exact = binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes, n) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_wilson_ends_are_exact():
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.75, 0.95])
def test_wilson_covers_as_promised(rate):
    draw = random.Random(11)
    hits = 0
    for _ in range(800):
        low, high = wilson(sum(draw.random() < rate for _ in range(120)), 120)
        hits += low <= rate <= high
    assert hits / 800 == pytest.approx(0.95, abs=0.03)


def test_difference_matches_newcombe_1998():
    """Case 1 of his table: 56/70 against 48/80, method 10."""
    assert difference_interval(48, 80, 56, 70) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@given(st.integers(0, 30), st.integers(0, 40))
def test_difference_turns_round_with_its_sides(base, head):
    low, high = difference_interval(base, 30, head, 40)
    assert low <= head / 40 - base / 30 <= high
    assert difference_interval(head, 40, base, 30) == pytest.approx((-high, -low))


def test_two_rates():
    assert two_rate_test(90, 100, 75, 100) == pytest.approx(0.0025, abs=2e-4)
    assert two_rate_test(75, 100, 90, 100) == pytest.approx(0.9975, abs=2e-4)
    assert two_rate_test(10, 10, 10, 10) == 1.0
    assert two_rate_test(0, 10, 0, 10) == 1.0


@pytest.mark.parametrize(("base_rate", "loss"), [(0.7, 0.0), (0.7, 0.1), (0.95, 0.05)])
def test_the_interval_and_the_test_of_two_rates_are_right_as_often_as_promised(base_rate, loss):
    draw = random.Random(12)
    covered = alarms = 0
    for _ in range(500):
        base = sum(draw.random() < base_rate for _ in range(150))
        head = sum(draw.random() < base_rate - loss for _ in range(150))
        low, high = difference_interval(base, 150, head, 150)
        covered += low <= -loss <= high
        alarms += two_rate_test(base, 150, head, 150) < 0.05
    assert covered / 500 == pytest.approx(0.95, abs=0.03)
    assert (alarms / 500 == pytest.approx(0.05, abs=0.03)) if not loss else (alarms / 500 >= 0.45)


def test_the_pooled_test_is_the_root_of_chi_square():
    known = chi2_contingency([[90, 10], [75, 25]], correction=False).pvalue
    assert two_rate_test(90, 100, 75, 100) == pytest.approx(known / 2)


def test_nothing_in_200_bounds_the_rate_below_one_and_a_half_points():
    assert zero_count_bound(200) == pytest.approx(0.01487, abs=1e-5)
    assert (1 - zero_count_bound(200)) ** 200 == pytest.approx(0.05)
    assert zero_count_bound(1) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: wilson(1, 0), "n must be at least 1, got 0"),
        (lambda: wilson(-1, 5), "successes must be between 0 and 5, got -1"),
        (lambda: wilson(6, 5), "successes must be between 0 and 5, got 6"),
        (lambda: zero_count_bound(0), "n must be at least 1, got 0"),
        (lambda: two_rate_test(1, 0, 1, 1), "base_n must be at least 1, got 0"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
