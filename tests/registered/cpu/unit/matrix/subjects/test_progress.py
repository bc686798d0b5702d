"""A workload has a budget of steps."""

import pickle

import pytest

from specmatrix.matrix.subjects.progress import Progress
from specmatrix.matrix.subjects.protocol import Stalled


def test_a_request_that_gains_a_token_per_step_is_within_the_budget():
    progress = Progress(chunk=None, lag=1)
    progress.sent(40, 30)
    for count in range(31):
        progress.step({"a": count})
    assert progress.steps == 31 <= progress.limit == 66


def test_steps_without_a_token_are_a_stall_that_names_the_request():
    progress = Progress(chunk=7, lag=0)
    progress.sent(40, 30)
    progress.sent(20, 30)
    assert progress.patience == 2 * (10 + 1 + 8 + 1)
    progress.step({"a": 3, "b": 1})
    progress.step({"a": 3, "b": 2})
    with pytest.raises(Stalled) as caught:
        for _ in range(progress.patience + 1):
            progress.step({"a": 3, "b": 2})
    assert (caught.value.request, caught.value.tokens, caught.value.since) == ("a", 3, 1)
    assert caught.value.idle == progress.patience + 1


def test_too_many_steps_are_a_stall_although_tokens_come_and_go():
    progress = Progress(chunk=None, lag=0)
    progress.sent(1, 4)
    with pytest.raises(Stalled, match=r"have not ended after 13 steps; they need at most 12; a has had"):
        for step in range(20):
            progress.step({"a": step % 2})
    with pytest.raises(Stalled, match="none of them runs"):
        Progress(chunk=None, lag=0).step({})
    stalled = Stalled(65, 1494, 55, "q20", 0, 1)
    again = pickle.loads(pickle.dumps(stalled))
    assert str(again) == str(stalled) and again.request == "q20", "it arrives whole from a rank"
