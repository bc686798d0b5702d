"""Each identity of sglang#33518 is seen when it breaks, under today's keys and earlier ones."""

from __future__ import annotations

import pytest

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.identities import IdentitiesGate, identity_fault
from specmatrix.matrix.subjects.http.sglang_engine import canonical
from specmatrix.matrix.subjects.protocol import Answer

# The example of sglang#33518.
INFO = {
    "completion_tokens": 106,
    "spec_accept_rate": 63 / 215,
    "spec_accept_length": 106 / 43,
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}


def fault(width: int | None = 5, **changes: object) -> str:
    tokens = int(str(changes.pop("tokens", 106)))
    answer = Answer("q", (1,), (2,) * tokens, "", "length", None, 0, (), meta_info=INFO | changes)
    return identity_fault(answer, width)


def test_the_example_holds_under_every_name():
    assert fault() == ""
    earlier = {
        "spec_num_correct_drafts": "spec_accept_token_num",
        "spec_num_proposed_drafts": "spec_draft_token_num",
        "spec_correct_drafts_histogram": "spec_accept_histogram",
    }
    old = {earlier.get(key, key): value for key, value in INFO.items()}
    assert {key: canonical(old)[key] for key in INFO} == INFO


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"spec_accept_length": 2.0}, "reports spec_accept_length 2.0; its counts give 2.46512"),
        ({"spec_accept_rate": 0.5}, "reports spec_accept_rate 0.5; its counts give 0.293023"),
        ({"spec_num_proposed_drafts": 214, "spec_accept_rate": 63 / 214}, "reports 214 proposed drafts; 43 rounds of"),
        ({"spec_correct_drafts_histogram": [12, 14, 11, 4, 0, 3]}, "reports the histogram [12, 14, 11, 4, 0, 3]"),
        ({"spec_correct_drafts_histogram": [12, 13, 11, 4, 0, 3]}, "reports the histogram [12, 13, 11, 4, 0, 3]"),
        ({"spec_correct_drafts_histogram": None}, "reports the histogram None, which must sum to its 43 rounds"),
        ({"completion_tokens": 105, "spec_accept_length": 105 / 43}, "reports completion_tokens 105; it has 106"),
        ({"spec_verify_ct": None}, "reports spec_verify_ct None; it must be an integer"),
        ({"tokens": 108, "completion_tokens": 108, "spec_accept_length": 108 / 43}, "has 108 tokens; its prefill and"),
    ],
)
def test_a_broken_identity_is_named(changes: dict[str, object], text: str):
    assert fault(**changes).startswith(text)


def test_an_answer_without_rounds_contradicts_nothing():
    assert fault(spec_verify_ct=0, completion_tokens=3) == ""
    assert identity_fault(Answer("q", (1,), (2,), "", "length", None, 0, (), meta_info={}), 5) == ""


def test_each_round_has_its_own_width_where_the_depth_changes():
    changed = {"spec_num_proposed_drafts": 214, "spec_accept_rate": 63 / 214}
    assert fault(**changed) and fault(None, **changed) == ""
    assert fault(tokens=107, completion_tokens=107, spec_accept_length=107 / 43) == ""


def test_the_gate_counts_rounds_and_names_the_answer(measured, altered):
    found, gate = measured("eagle3.s3.k4.n8.v2.p16.pair"), IdentitiesGate()
    rounds = sum(len(answer.accept_lengths) for answer in found.run.answers)
    outcome = found.judge(gate)
    assert (outcome.state, outcome.numbers) == (State.PASS, {"rounds": rounds, "faults": 0})
    answer = found.run.answers[1]
    outcome = found.judge(gate, altered(found.run, 1, meta_info={**answer.meta_info, "completion_tokens": 1}))
    text = f"{answer.name} reports completion_tokens 1; it has {len(answer.output_ids)}"
    assert outcome.state is State.FAIL and outcome.message.startswith(text)
    assert outcome.numbers == {"rounds": rounds, "faults": 1}
    assert gate.applies(found.prepared.cell) and not gate.applies(found.prepared.baseline.cell)
    assert found.verdict(gate, answers=()) == "NOT MEASURED: no answer reports a verify round"
