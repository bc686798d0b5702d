"""Per-request metrics: SGLang's keys and the identities between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.schedule.request import SpecMetrics

KEYS = {
    "spec_verify_ct",
    "spec_accept_length",
    "spec_accept_rate",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_correct_drafts_histogram",
    "spec_verified_drafts_histogram",
}


def counted(lengths, width=5) -> SpecMetrics:
    metrics = SpecMetrics()
    for length in lengths:
        metrics.count(length, width)
    return metrics


def test_each_round_keeps_its_own_width():
    metrics = counted([1, 3])
    metrics.count(2, 3)
    assert (metrics.lengths, metrics.widths, metrics.proposed) == ([1, 3, 2], [5, 5, 3], 10)


def test_a_worked_example():
    info = counted([1, 3, 3, 5]).meta_info(completion_tokens=13)
    assert info["spec_verify_ct"] == 4
    assert info["spec_num_correct_drafts"] == 8
    assert info["spec_num_proposed_drafts"] == 16
    assert info["spec_accept_length"] == 13 / 4
    assert info["spec_accept_rate"] == 8 / 16
    assert info["spec_correct_drafts_histogram"] == [1, 0, 2, 0, 1]


def test_the_keys():
    info = counted([2, 1]).meta_info(4)
    assert set(info) == KEYS


def test_nothing_is_claimed_without_drafts():
    assert SpecMetrics().meta_info(3) == {}
    assert counted([1, 1], width=1).meta_info(3) == {}


def test_the_histogram_that_is_handed_out_is_a_copy():
    metrics = counted([2])
    handed = metrics.meta_info(3)["spec_correct_drafts_histogram"]
    metrics.count(4, 5)
    assert handed == [0, 1]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_identities(lengths):
    metrics = counted(lengths, width=6)
    assert sum(metrics.histogram) == metrics.verify_ct == len(metrics.lengths)
    assert metrics.emitted == metrics.correct + metrics.verify_ct == sum(lengths)
    assert metrics.correct == sum(drafts * rounds for drafts, rounds in enumerate(metrics.histogram))
    info = metrics.meta_info(1 + sum(lengths))
    # On a chain the mean acceptance length is rate * (N - 1) + 1; the prefill's token adds 1 / rounds.
    length = info["spec_accept_rate"] * 5 + 1 + 1 / len(lengths)
    assert info["spec_accept_length"] == pytest.approx(length)
