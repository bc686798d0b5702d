"""Gate `claimed_capabilities`: a subject that counts drafts must have some wherever its drafter should run."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import Capability

NOTHING = "the subject claims totals, but counts no draft (spec.drafted), so nothing shows that it speculates"


def judged(measured, cell: str, drafted: int | None, accepted: int = 0, **changes: object):
    prepared, run, baseline = measured(cell)
    totals = {} if drafted is None else {"spec.drafted": drafted, "spec.accepted": accepted}
    answers = tuple(replace(answer, **changes) for answer in run.answers)
    subject = replace(run, capabilities=frozenset({Capability.TOTALS}), evidence=totals, flags={}, answers=answers)
    return ClaimedCapabilitiesGate().judge(prepared, subject, baseline)


@pytest.mark.parametrize("cell", ["eagle3.s3.k1", "ngram"])
def test_a_subject_whose_drafter_never_runs_is_red(measured, cell):
    found = judged(measured, cell, 0)
    assert (found.state, found.message) == (State.FAIL, NOTHING)
    assert judged(measured, cell, 9).state is State.PASS


def test_a_text_that_repeats_nothing_needs_no_ngram_draft(measured):
    text = {"prompt_ids": tuple(range(100, 140)), "output_ids": tuple(range(40))}
    assert judged(measured, "ngram", 0, **text).state is State.PASS
    # A text that is hardly longer than what repeats; and a subject that has no such counter.
    assert judged(measured, "ngram", 0, prompt_ids=(100,), output_ids=tuple(range(9))).state is State.PASS
    assert judged(measured, "ngram", None, **text).state is State.PASS
    # What repeats in the prompt alone, or at the end of the text only, gives nothing to draft.
    text["prompt_ids"] = (*range(5), *range(5), 100)
    assert judged(measured, "ngram", 0, **text | {"output_ids": (*range(50, 70), *range(50, 56))}).state is State.PASS
    assert judged(measured, "ngram", 0, **text | {"output_ids": (*range(50, 70), *range(50, 58))}).state is State.FAIL
    assert judged(measured, "ngram.temperature", 0).state is State.PASS


def test_more_accepted_than_drafted_is_red(measured):
    found = judged(measured, "ngram", 3, 4)
    assert found.state is State.FAIL
    assert found.message == "the subject counts 4 accepted drafts (spec.accepted) of 3 (spec.drafted)"


def answered(**changes: object):
    """A change to a run: its answers with other fields."""
    return lambda run: {"answers": tuple(replace(answer, **changes) for answer in run.answers)}


@pytest.mark.parametrize(
    ("claim", "change", "text"),
    [
        ("readback", lambda _: {"flags": {"depth": 3}}, "the subject claims readback, but does not report depth"),
        ("memory", lambda _: {"memory": None}, "the subject claims memory, but reports none"),
        ("journal", lambda _: {"journal": None}, "the subject claims a journal, but has none"),
        ("journal", lambda run: {"journal": []}, "the subject claims a journal, but has none"),
        ("work", lambda _: {"work": None}, "the subject claims a log of its work, but has none"),
        ("trace", lambda _: {"trace": None}, "the subject claims a trace, but has none"),
        ("counters", lambda _: {"evidence": {"kv.alloc": 0}}, "the subject claims counters, but all are zero"),
        ("token_ids", answered(output_ids=()), "the subject claims token_ids, but {name} has none"),
        ("rounds", answered(accept_lengths=()), "the subject claims rounds, but {name} has none for {tokens} tokens"),
    ],
)
def test_a_claim_without_its_evidence_is_red(measured, claim, change, text):
    prepared, run, baseline = measured("eagle3.flat.v2")
    run = replace(run, capabilities=frozenset({Capability(claim)}))
    assert ClaimedCapabilitiesGate().judge(prepared, run, baseline).state is State.PASS
    outcome = ClaimedCapabilitiesGate().judge(prepared, replace(run, **change(run)), baseline)
    (answer,) = run.answers
    text = text.format(name=answer.name, tokens=len(answer.output_ids))
    assert (outcome.state, outcome.message) == (State.FAIL, text)
    assert outcome.numbers == {"answers": 1, "claims": 1, "broken": 1}


@pytest.mark.parametrize(("missing", "retractions"), [(0, 0), (1, 0), (1, 1), (2, 1)])
def test_rounds_that_emitted_too_little_are_red(measured, missing, retractions):
    """Each prefill after a retraction may add a token."""
    prepared, run, baseline = measured("eagle3.flat.v2")
    (answer,) = run.answers
    tokens = len(answer.output_ids)
    rounds = tokens - 1 - missing
    fewer = answered(accept_lengths=(1,) * rounds, retractions=retractions)(run)
    claimed = replace(run, capabilities=frozenset({Capability.ROUNDS}), **fewer)
    outcome = ClaimedCapabilitiesGate().judge(prepared, claimed, baseline)
    text = f"the rounds of {answer.name} emitted {rounds} tokens and its prefill 1, but it has {tokens}"
    red = missing > retractions
    assert (outcome.state, outcome.message) == ((State.FAIL, text) if red else (State.PASS, ""))


def test_without_requests_nothing_is_claimed(measured):
    prepared, run, baseline = measured("eagle3.s3.k1")
    outcome = ClaimedCapabilitiesGate().judge(prepared, replace(run, requests=()), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the cell has no requests")


def test_what_is_not_claimed_is_not_asked_for(measured):
    prepared, run, baseline = measured("eagle3.s3.k1")
    bare = replace(run, memory=None, journal=None, work=None, trace=None, evidence={}, flags={"depth": 3})
    answers = tuple(replace(answer, accept_lengths=(), output_ids=()) for answer in run.answers)
    outcome = ClaimedCapabilitiesGate().judge(
        prepared, replace(bare, answers=answers, capabilities=frozenset()), baseline
    )
    assert (outcome.state, outcome.message) == (State.PASS, "")
