"""Gate `claims`: a subject that counts drafts must have some wherever its drafter should run."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.claims import ClaimsGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import Capability

pytestmark = pytest.mark.register(est_seconds=2, stage="pr")

NOTHING = "the subject claims totals, but counts no draft (spec.drafted), so nothing shows that it speculates"


def judged(measured, cell: str, drafted: int, accepted: int = 0, **changes: object):
    prepared, run, baseline = measured(cell)
    totals = {"spec.drafted": drafted, "spec.accepted": accepted}
    answers = tuple(replace(answer, **changes) for answer in run.answers)
    subject = replace(run, capabilities=frozenset({Capability.TOTALS}), evidence=totals, flags={}, answers=answers)
    return ClaimsGate().judge(prepared, subject, baseline)


@pytest.mark.parametrize("cell", ["eagle3.s3.k1", "ngram"])
def test_a_subject_whose_drafter_never_runs_is_red(measured, cell):
    found = judged(measured, cell, 0)
    assert (found.state, found.message) == (State.FAIL, NOTHING)
    assert judged(measured, cell, 9).state is State.PASS


def test_a_text_that_repeats_nothing_needs_no_ngram_draft(measured):
    text = {"prompt_ids": tuple(range(100, 140)), "output_ids": tuple(range(40))}
    assert judged(measured, "ngram", 0, **text).state is State.PASS
    # What repeats in the prompt alone, or at the end of the text only, gives nothing to draft.
    text["prompt_ids"] = (*range(5), *range(5), 100)
    assert judged(measured, "ngram", 0, **text | {"output_ids": (*range(50, 70), *range(50, 56))}).state is State.PASS
    assert judged(measured, "ngram", 0, **text | {"output_ids": (*range(50, 70), *range(50, 58))}).state is State.FAIL
    assert judged(measured, "ngram.temperature", 0).state is State.PASS


def test_more_accepted_than_drafted_is_red(measured):
    found = judged(measured, "ngram", 3, 4)
    assert found.state is State.FAIL
    assert found.message == "the subject counts 4 accepted drafts (spec.accepted) of 3 (spec.drafted)"
