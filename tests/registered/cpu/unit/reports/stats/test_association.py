import random
from math import exp, log

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, hypergeom
from scipy.stats import fisher_exact as scipy_fisher

from specmatrix.reports.stats import benjamini_hochberg, fisher_log


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_fisher_is_the_hypergeometric_tail(both, failing_only, matching_only, neither):
    known = scipy_fisher([[both, failing_only], [matching_only, neither]], alternative="greater").pvalue
    total = both + failing_only + matching_only + neither
    assert exp(fisher_log(both, both + failing_only, both + matching_only, total)) == pytest.approx(known, abs=1e-9)


def test_a_property_without_influence_is_rarely_found():
    draw = random.Random(5)
    found = 0
    for _ in range(500):
        failing = [draw.random() < 0.2 for _ in range(80)]
        hits = sum(draw.random() < 0.3 for failed in failing if failed)
        matching = hits + sum(draw.random() < 0.3 for failed in failing if not failed)
        found += exp(fisher_log(hits, sum(failing), matching, 80)) <= 0.05
    assert found / 500 <= 0.06


def test_fisher_of_many_cells_is_quick_and_ranks_the_smallest():
    assert fisher_log(3001, 5000, 5000, 100_000) < fisher_log(3000, 5000, 5000, 100_000) < -2_000
    assert fisher_log(3000, 5000, 5000, 100_000) == pytest.approx(hypergeom.logsf(2999, 100_000, 5000, 5000))
    # 6 of 6 failing cells and none of 31 passing: one of C(37, 6) choices.
    assert fisher_log(6, 6, 6, 37) == pytest.approx(-log(2_324_784))
    assert fisher_log(0, 5, 5, 100) == 0.0
    assert exp(fisher_log(250, 5000, 5000, 100_000)) == pytest.approx(0.5, abs=0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_discoveries_are_those_of_adjusted_p_values(values):
    adjusted = false_discovery_control(values)
    assume(all(abs(value - 0.05) > 1e-12 for value in adjusted))
    assert benjamini_hochberg(values, 0.05) == [bool(value <= 0.05) for value in adjusted]


def test_discoveries_at_the_edges():
    assert benjamini_hochberg([], 0.05) == []
    assert benjamini_hochberg([0.0, 1.0], 0.05) == [True, False]
    assert benjamini_hochberg([0.05], 0.05) == [True]
    assert benjamini_hochberg([0.04, 0.04], 0.05) == [True, True]
    assert benjamini_hochberg([0.04, 0.9], 0.05) == [False, False]


def test_false_discoveries_stay_below_their_rate():
    draw = random.Random(4)
    shares = []
    for _ in range(200):
        values = [draw.random() for _ in range(90)] + [draw.random() * 1e-4 for _ in range(10)]
        found = benjamini_hochberg(values, 0.05)
        shares.append(sum(found[:90]) / max(1, sum(found)))
    assert sum(shares) / 200 <= 0.06


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fisher_log(3, 2, 3, 10), "hits must be between 0 and 2, got 3"),
        (lambda: fisher_log(0, 8, 8, 10), "hits must be between 6 and 8, got 0"),
        (lambda: fisher_log(0, 11, 3, 10), "failing must be between 0 and 10, got 11"),
        (lambda: fisher_log(0, 3, 11, 10), "matching must be between 0 and 10, got 11"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
