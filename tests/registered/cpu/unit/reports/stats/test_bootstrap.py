import numpy as np
import pytest
from scipy.stats import bootstrap

from specmatrix.reports.stats import ratio_change

EMITTED = [64, 128, 100, 90, 110, 70, 128, 128, 96, 81]
ROUNDS = [20, 41, 33, 30, 35, 25, 40, 44, 31, 29]


def test_prompts_that_change_alike_have_no_interval_and_the_p_value_of_a_sign_test():
    slower = [rounds * 1.02 for rounds in ROUNDS]
    for prompts, p in ((2, 0.25), (9, 0.5**9), (10, 0.5**10)):
        change = ratio_change((EMITTED[:prompts], ROUNDS[:prompts]), (EMITTED[:prompts], slower[:prompts]))
        assert change.change == pytest.approx(1 / 1.02 - 1)
        assert (change.interval, change.p_loss, change.p_gain) == (None, p, 1.0)
    many = ratio_change((EMITTED * 2, ROUNDS * 2), (EMITTED * 2, slower * 2))
    assert (many.interval, many.p_loss) == (None, pytest.approx(1 / 2001))


def test_only_the_prompts_that_changed_count():
    change = ratio_change((EMITTED, ROUNDS), (EMITTED, [30, *ROUNDS[1:]]))
    assert change.interval is not None and change.p_loss == 0.5


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_too_few_prompts_cannot_distinguish_a_loss_from_a_gain(factor):
    for prompts in range(2, 8):
        moved = [rounds * (factor + 0.01 * index) for index, rounds in enumerate(ROUNDS[:prompts])]
        low, high = ratio_change((EMITTED[:prompts], ROUNDS[:prompts]), (EMITTED[:prompts], moved)).interval
        assert (low <= 0 <= high) is (prompts < 6)


def test_no_change_is_no_evidence():
    change = ratio_change((EMITTED, ROUNDS), (EMITTED, ROUNDS))
    assert (change.change, change.interval, change.p_loss, change.p_gain) == (0.0, (0.0, 0.0), 1.0, 1.0)


def test_long_prompts_weigh_more():
    """A ratio of sums is not the mean of ratios: (10 + 300) / (10 + 100), not (1 + 3) / 2."""
    change = ratio_change(([10, 300], [10, 100]), ([10, 300], [10, 150]))
    assert change.change == pytest.approx((310 / 160) / (310 / 110) - 1)


def prompts(draw, true_change, count=80):
    """Paired emitted and rounds of two runs with 3 % noise per prompt."""
    emitted = draw.integers(60, 129, count).astype(float)
    base = emitted / (3 * draw.normal(1, 0.15, count))
    head = base / (1 + true_change) * draw.normal(1, 0.03, count)
    return (emitted, base), (emitted, head)


def test_false_alarms_and_power_are_those_that_were_measured():
    """80 prompts, 3 % noise: a paired bootstrap sees a loss of 2 % almost always and stays quiet without one."""
    draw = np.random.default_rng(1)
    quiet = [ratio_change(*prompts(draw, 0.0), resamples=400).p_loss <= 0.01 for _ in range(150)]
    seen = [ratio_change(*prompts(draw, -0.02), resamples=400).p_loss <= 0.01 for _ in range(150)]
    assert sum(quiet) / 150 <= 0.04
    assert sum(seen) / 150 >= 0.95


def test_the_interval_covers_as_promised():
    draw = np.random.default_rng(8)
    hits = 0
    for _ in range(300):
        low, high = ratio_change(*prompts(draw, -0.05), resamples=400).interval
        hits += low <= -0.05 <= high
    assert hits / 300 == pytest.approx(0.95, abs=0.04)


def test_the_interval_is_that_of_scipy():
    (emitted, base), (_, head) = prompts(np.random.default_rng(6), -0.03)

    def change(rounds, other, axis):
        return rounds.sum(axis) / other.sum(axis) - 1

    known = bootstrap((base, head), change, paired=True, n_resamples=4000, method="percentile", rng=1)
    found = ratio_change((emitted, base), (emitted, head))
    assert found.interval == pytest.approx(tuple(known.confidence_interval), abs=1e-3)
    assert found.change == pytest.approx(base.sum() / head.sum() - 1)


def test_equal_samples_give_equal_intervals():
    slower = [rounds + i % 3 for i, rounds in enumerate(ROUNDS)]
    first, again = (ratio_change((EMITTED, ROUNDS), (EMITTED, slower)) for _ in range(2))
    assert first == again and first.interval[0] < first.change < first.interval[1]


def change_to(emitted, rounds):
    return ratio_change(([1, 2], [1, 1]), (emitted, rounds))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: change_to([1, 2], [1]), "number of prompts must be at least 2, got 1"),
        (lambda: change_to([1], [1]), "number of prompts must be at least 2, got 1"),
        (lambda: change_to([1, 2], [1, 0]), "all numbers must be above 0, got 0"),
        (lambda: change_to([1, -2], [1, 1]), "all numbers must be above 0, got -2"),
        (lambda: change_to([1, 2, 3], [1, 1, 1]), "must have the same shape"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
