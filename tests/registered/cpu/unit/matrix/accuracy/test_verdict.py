"""Pairing: the same prompts only, the sequential test at its boundary, and too little evidence for a verdict."""

from dataclasses import replace

import pytest

from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample
from specmatrix.matrix.accuracy.verdict import (
    ALPHA,
    FALSE_ALARMS,
    MIN_RIGHT,
    PairingError,
    counts,
    overall,
    pair,
    unproven,
)
from specmatrix.matrix.gates.gate import State


def samples(right, n=40):
    """`right` right answers first, then wrong ones, all of them valid and ended."""
    yes = dict.fromkeys(EXTRACTORS, True)
    return [
        Sample(
            i + 1,
            f"hash{i}",
            dict.fromkeys(EXTRACTORS, i < right),
            yes,
            "#### 1",
            False,
            tokens=11,
            rounds=4,
            retractions=1,
        )
        for i in range(n)
    ]


def states(tests):
    return {test.name: test.state for test in tests}


def test_equal_runs_pass():
    tests = pair(samples(20), samples(20))
    assert set(states(tests).values()) == {State.PASS}
    assert overall(tests, "") is State.PASS
    assert overall(tests, "nothing was drafted") is State.NOT_MEASURED


def test_the_boundary_of_the_sequential_test():
    passing, failing = pair(samples(20), samples(9)), pair(samples(20), samples(8))
    assert (passing[0].lost, failing[0].lost) == (11, 12)
    assert len(passing) * ALPHA == FALSE_ALARMS
    assert failing[0].p < ALPHA <= passing[0].p
    assert (overall(passing, ""), overall(failing, "")) == (State.PASS, State.FAIL)
    assert failing[0].message == "the cell loses 12 questions of 40 and wins 0 (p = 0.0016, allowed 0.002)"


def test_a_loss_that_was_certain_once_stays_one():
    """A run may end there, so what follows must not change the verdict."""
    base, head = samples(30, n=60), samples(0, n=60)
    later = [replace(s, right=dict.fromkeys(EXTRACTORS, i >= 15)) for i, s in enumerate(head)]
    assert pair(base[:15], later[:15])[0].state is State.FAIL
    assert pair(base, later)[0].state is State.FAIL
    assert (pair(base, later)[0].lost, pair(base, later)[0].won) == (15, 30)


def test_a_gain_is_no_loss():
    assert overall(pair(samples(12), samples(30)), "") is State.PASS


def test_fewer_right_answers_than_a_loss_needs_are_not_measured():
    assert MIN_RIGHT == 12
    assert overall(pair(samples(12), samples(12)), "") is State.PASS
    thin = pair(samples(11), samples(11))
    assert overall(thin, "") is State.NOT_MEASURED
    assert thin[0].message.startswith("the baseline answers 11 of 40 questions correctly; with fewer than 12")


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_each_extractor_is_judged_alone(extractor):
    base = samples(20)
    head = [replace(s, right=s.right | {extractor: False}) for s in base]
    red = [name for name, state in states(pair(base, head)).items() if state is State.FAIL]
    assert red == [f"right by {extractor}"]
    head = [replace(s, valid=s.valid | {extractor: False}) for s in base]
    red = [name for name, state in states(pair(base, head)).items() if state is State.FAIL]
    assert red == [f"an answer by {extractor}"]


def test_answers_that_run_into_the_limit_are_red():
    base = samples(20)
    head = [replace(s, by_length=True) for s in base]
    red = [name for name, state in states(pair(base, head)).items() if state is State.FAIL]
    assert red == ["ended before the limit"]


def test_other_prompts_cannot_be_paired():
    base = samples(20)
    with pytest.raises(
        PairingError, match=r"^the prompts of line 3 differ between the runs, so answers cannot be paired$"
    ):
        pair(base, [*base[:2], replace(base[2], prompt_hash="other"), *base[3:]])
    with pytest.raises(PairingError, match=r"^the runs must answer the same questions, got 40 and 39$"):
        pair(base, base[:-1])


def test_counts():
    numbers = counts(samples(3, n=5))
    assert numbers["right_strict-match"] == 3
    assert numbers["invalid_flexible-extract"] == numbers["ended_by_length"] == 0
    assert numbers["tokens_per_round"] == pytest.approx((55 - 5 - 5) / 20)
    assert numbers["retractions"] == 5


def test_a_cell_that_never_drafted_proves_nothing():
    assert unproven("eagle3", {"spec.drafted": 9, "spec.accepted": 2}) == unproven("none", {}) == ""
    assert unproven("eagle3", {}) == "", "a server may show no counters"
    assert unproven("", {"spec.drafted": 0}).startswith("the cell requests speculation, but spec.drafted stayed 0")
    assert unproven("eagle3", {"spec.drafted": 9, "spec.accepted": 0}) == (
        "the cell requests eagle3, but spec.accepted stayed 0, so its answers prove nothing about speculation"
    )
