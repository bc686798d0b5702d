import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln
from scipy.stats import beta

from specmatrix.reports.stats import detectable_drop, loss_evidence, mcnemar, sequential_mcnemar

COUNTS = st.integers(0, 80)


@given(COUNTS, COUNTS)
def test_the_evidence_is_the_integral_over_losing_rates(lost, won):
    known = beta.logsf(0.5, lost + 1, won + 1) + betaln(lost + 1, won + 1) + (lost + won + 1) * 0.6931471805599453
    assert loss_evidence(lost, won) == pytest.approx(2.718281828459045**known, rel=1e-6)


def test_known_values():
    assert loss_evidence(0, 0) == sequential_mcnemar([]) == 1.0
    assert loss_evidence(1, 0) == 1.5
    assert loss_evidence(9, 0) == 1023 / 10
    assert sequential_mcnemar([True] * 9) == 10 / 1023
    assert sequential_mcnemar([False] * 40) == 1.0


@given(st.lists(st.booleans(), max_size=60))
def test_more_answers_never_take_a_finding_back(losses):
    values = [sequential_mcnemar(losses[:n]) for n in range(len(losses) + 1)]
    assert values == sorted(values, reverse=True) and values[-1] > 0


def test_a_reader_of_every_answer_is_rarely_misled_and_the_fixed_test_would_be():
    draw = random.Random(5)
    sequential = fixed = 0
    for _ in range(300):
        losses = [draw.random() < 0.5 for _ in range(100)]
        sequential += sequential_mcnemar(losses) <= 0.05
        fixed += any(mcnemar(sum(losses[:n]), n - sum(losses[:n])) <= 0.05 for n in range(1, 101))
    assert sequential / 300 <= 0.05 < 0.15 < fixed / 300


@pytest.mark.parametrize(("rate", "discordant", "seen"), [(0.75, 80, 0.85), (0.9, 25, 0.75), (1.0, 9, 1.0)])
def test_losses_are_seen(rate, discordant, seen):
    draw = random.Random(6)
    found = [sequential_mcnemar([draw.random() < rate for _ in range(discordant)]) <= 0.01 for _ in range(400)]
    assert sum(found) / 400 >= seen


def test_the_detectable_drop_of_the_sequential_test():
    """Its last value is at least its smallest one, so the drop shows at least as often as promised."""

    def at_the_end(lost, won):
        return 1 / loss_evidence(lost, won)

    drop = detectable_drop(160, 4, 200, 0.01, 0.8, at_the_end)
    assert drop > detectable_drop(160, 4, 200, 0.01, 0.8)
    draw, chance = random.Random(7), (drop * 200 + 4) / 160
    seen = 0
    for _ in range(400):
        losses = [True] * sum(draw.random() < chance for _ in range(160)) + [False] * 4
        draw.shuffle(losses)
        seen += sequential_mcnemar(losses) < 0.01
    assert 0.77 <= seen / 400 <= 0.9


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: loss_evidence(-1, 2), "lost must be at least 0, got -1"),
        (lambda: loss_evidence(1, -2), "won must be at least 0, got -2"),
    ],
)
def test_each_bad_argument_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
