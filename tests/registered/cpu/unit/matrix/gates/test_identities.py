"""Each identity of sglang#33518 is seen when it breaks, under today's keys and earlier ones."""

from __future__ import annotations

import pytest

from specmatrix.matrix.gates.identities import identity_fault
from specmatrix.matrix.subjects.http.sglang_engine import canonical
from specmatrix.matrix.subjects.protocol import Answer

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

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


def fault(**changes: object) -> str:
    answer = Answer("q", (1,), (2,) * 106, "", "length", None, 0, (), meta_info=INFO | changes)
    return identity_fault(answer, 5)


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
        (
            {"spec_num_proposed_drafts": 214, "spec_accept_rate": 63 / 214},
            "reports 214 proposed drafts; 43 rounds",
        ),
        ({"spec_correct_drafts_histogram": [12, 14, 11, 4, 0, 3]}, "which must sum to its 43 rounds"),
        ({"spec_correct_drafts_histogram": [12, 13, 11, 4, 0, 3]}, "which holds 62 accepted drafts, and 63 of them"),
        ({"spec_correct_drafts_histogram": None}, "reports the histogram None, which must sum to its 43 rounds"),
        ({"completion_tokens": 105, "spec_accept_length": 105 / 43}, "reports completion_tokens 105; it has 106"),
        ({"spec_verify_ct": None}, "reports spec_verify_ct None; it must be an integer"),
    ],
)
def test_a_broken_identity_is_named(changes: dict[str, object], text: str):
    assert text in fault(**changes)
