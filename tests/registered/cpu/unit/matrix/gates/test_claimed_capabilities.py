"""Gate `claimed_capabilities`: a subject that counts drafts must have some wherever its drafter should run."""

from dataclasses import replace

import pytest

from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import Capability

GATE = ClaimedCapabilitiesGate()
NOTHING = "FAIL: the subject claims totals, but counts no draft (spec.drafted), so nothing shows that it speculates"


def verdict(measured, cell: str, drafted: int | None, accepted: int = 0, **changes: object):
    found = measured(cell)
    totals = {} if drafted is None else {"spec.drafted": drafted, "spec.accepted": accepted}
    claims = frozenset({Capability.TOTALS})
    return found.verdict(
        GATE, replace(found.run, capabilities=claims, evidence=totals, **answered(**changes)(found.run))
    )


def test_a_subject_whose_drafter_never_runs_or_accepts_more_than_it_drafted_is_red(measured):
    for cell in ("eagle3.s3.k1", "ngram"):
        assert verdict(measured, cell, 0) == NOTHING and verdict(measured, cell, 9) == "PASS"
    text = "FAIL: the subject counts 4 accepted drafts (spec.accepted) of 3 (spec.drafted)"
    assert verdict(measured, "ngram", 3, 4) == text


@pytest.mark.parametrize(
    ("cell", "drafted", "prompt", "output", "due"),
    [
        ("ngram", 0, range(100, 140), range(40), "PASS"),
        # A text that is hardly longer than what repeats; and a subject that has no such counter.
        ("ngram", 0, (100,), range(9), "PASS"),
        ("ngram", None, range(100, 140), range(40), "PASS"),
        # What repeats in the prompt alone, or at the end of the text only, gives nothing to draft.
        ("ngram", 0, (*range(5), *range(5), 100), (*range(50, 70), *range(50, 56)), "PASS"),
        ("ngram", 0, (*range(5), *range(5), 100), (*range(50, 70), *range(50, 58)), NOTHING),
        ("ngram.temperature", 0, None, None, "PASS"),
    ],
)
def test_a_text_that_repeats_nothing_needs_no_ngram_draft(measured, cell, drafted, prompt, output, due):
    texts = {} if prompt is None else {"prompt_ids": tuple(prompt), "output_ids": tuple(output)}
    assert verdict(measured, cell, drafted, **texts) == due


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
        ("order", lambda _: {"journal": None}, "the subject claims the order of rounds, but has no journal"),
        ("work", lambda _: {"work": None}, "the subject claims a log of its work, but has none"),
        ("trace", lambda _: {"trace": None}, "the subject claims a trace, but has none"),
        ("counters", lambda run: {"evidence": dict.fromkeys(run.evidence, 0)}, "the subject claims counters, but all"),
        ("token_ids", answered(output_ids=()), "the subject claims token_ids, but {name} has none"),
        ("rounds", answered(accept_lengths=()), "the subject claims rounds, but {name} has none for {tokens} tokens"),
    ],
)
def test_a_claim_without_its_evidence_is_red(measured, claim, change, text):
    found = measured("eagle3.flat.v2")
    run = replace(found.run, capabilities=frozenset({Capability(claim)}))
    assert found.verdict(GATE, run) == "PASS"
    outcome = found.judge(GATE, run, **change(run))
    (answer,) = run.answers
    assert outcome.state is State.FAIL
    assert outcome.message.startswith(text.format(name=answer.name, tokens=len(answer.output_ids)))
    assert outcome.numbers == {"answers": 1, "claims": 1, "broken": 1}
    assert found.verdict(GATE, replace(run, capabilities=frozenset()), **change(run)) == "PASS"


@pytest.mark.parametrize(("missing", "retractions"), [(0, 0), (1, 0), (1, 1), (2, 1)])
def test_rounds_that_emitted_too_little_are_red(measured, missing, retractions):
    """Each prefill after a retraction may add a token."""
    found = measured("eagle3.flat.v2")
    (answer,) = found.run.answers
    tokens = len(answer.output_ids)
    rounds = tokens - 1 - missing
    fewer = answered(accept_lengths=(1,) * rounds, retractions=retractions)(found.run)
    text = f"the rounds of {answer.name} emitted {rounds} tokens and its prefill 1, but it has {tokens}"
    due = f"FAIL: {text}" if missing > retractions else "PASS"
    assert found.verdict(GATE, capabilities=frozenset({Capability.ROUNDS}), **fewer) == due
    assert found.verdict(GATE, requests=()) == "NOT MEASURED: the cell has no requests"
