"""Pairing: the same prompts only, the sequential test at its boundary, and too little evidence for a verdict."""

from dataclasses import replace

import pytest

from specmatrix.matrix.accuracy import paired_run
from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample
from specmatrix.matrix.gates.gate import State


def samples(right, n=40):
    """`right` right answers first, then wrong ones, all of them valid and ended."""
    yes = dict.fromkeys(EXTRACTORS, True)
    marks = [dict.fromkeys(EXTRACTORS, i < right) for i in range(n)]
    return [
        Sample(i + 1, f"hash{i}", mark, yes, "#### 1", False, tokens=11, rounds=4, retractions=1)
        for i, mark in enumerate(marks)
    ]


def red(base, head):
    """The tests that fail."""
    return [test.name for test in paired_run.pair(base, head) if test.state is State.FAIL]


def test_equal_runs_pass_and_a_gain_is_no_loss():
    tests = paired_run.pair(samples(20), samples(20))
    assert {test.state for test in tests} == {State.PASS} == {paired_run.overall(tests, "")}
    assert paired_run.overall(tests, "nothing was drafted") is State.NOT_MEASURED
    assert paired_run.overall(paired_run.pair(samples(12), samples(30)), "") is State.PASS


def test_the_boundary_of_the_sequential_test():
    passing, failing = paired_run.pair(samples(20), samples(9)), paired_run.pair(samples(20), samples(8))
    assert (passing[0].lost, failing[0].lost) == (11, 12)
    assert len(passing) * paired_run.ALPHA == paired_run.FALSE_ALARMS
    assert failing[0].p < paired_run.ALPHA <= passing[0].p
    assert (paired_run.overall(passing, ""), paired_run.overall(failing, "")) == (State.PASS, State.FAIL)
    assert failing[0].message == "the cell loses 12 questions of 40 and wins 0 (p = 0.0016, allowed 0.002)"


def test_a_loss_that_was_certain_once_stays_one():
    """A run may end there, so what follows must not change the verdict."""
    base, head = samples(30, n=60), samples(0, n=60)
    later = [replace(s, right=dict.fromkeys(EXTRACTORS, i >= 15)) for i, s in enumerate(head)]
    assert paired_run.pair(base[:15], later[:15])[0].state is State.FAIL
    assert paired_run.pair(base, later)[0].state is State.FAIL
    assert (paired_run.pair(base, later)[0].lost, paired_run.pair(base, later)[0].won) == (15, 30)


def test_fewer_right_answers_than_a_loss_needs_are_not_measured():
    assert paired_run.MIN_RIGHT == 12
    assert paired_run.overall(paired_run.pair(samples(12), samples(12)), "") is State.PASS
    thin = paired_run.pair(samples(11), samples(11))
    assert paired_run.overall(thin, "") is State.NOT_MEASURED
    assert thin[0].message.startswith("the baseline answers 11 of 40 questions correctly; with fewer than 12")


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_each_extractor_is_judged_alone(extractor):
    base = samples(20)
    assert red(base, [replace(s, right=s.right | {extractor: False}) for s in base]) == [f"right by {extractor}"]
    assert red(base, [replace(s, valid=s.valid | {extractor: False}) for s in base]) == [f"an answer by {extractor}"]
    assert red(base, [replace(s, by_length=True) for s in base]) == ["ended before the limit"]


def test_other_prompts_cannot_be_paired():
    base = samples(20)
    for other, text in (
        ([*base[:2], replace(base[2], prompt_hash="other"), *base[3:]], "the prompts of line 3 differ between the"),
        (base[:-1], "the runs must answer the same questions, got 40 and 39$"),
    ):
        with pytest.raises(paired_run.PairingError, match=f"^{text}"):
            paired_run.pair(base, other)


def test_counts():
    numbers = paired_run.counts(samples(3, n=5))
    assert numbers["right_strict-match"] == 3
    assert numbers["invalid_flexible-extract"] == numbers["ended_by_length"] == 0
    assert numbers["tokens_per_round"] == pytest.approx((55 - 5 - 5) / 20)
    assert numbers["retractions"] == 5


def test_a_cell_that_never_drafted_proves_nothing():
    assert (
        paired_run.unproven("eagle3", {"spec.drafted": 9, "spec.accepted": 2}) == paired_run.unproven("none", {}) == ""
    )
    text = "the cell requests eagle3, but spec.accepted stayed 0, so its answers prove nothing about speculation"
    assert paired_run.unproven("eagle3", {"spec.drafted": 9, "spec.accepted": 0}) == text
