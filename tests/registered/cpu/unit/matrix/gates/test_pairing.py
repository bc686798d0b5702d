from dataclasses import replace

import pytest

from specmatrix.matrix.gates.pairing import phase_of
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.request import RequestSpec

# Prompt of 8 tokens, the prefill's token, rounds of 3, 1 and 2 tokens.
ANSWER = Answer("q1", tuple(range(8)), (9,) * 7, "", "length", None, 0, (3, 1, 2))
BOTH = "repetition_penalty, logit_bias"


@pytest.mark.parametrize(
    ("index", "changes", "rules", "chunk", "phase"),
    [
        (0, {}, {}, None, ", in the prefill"),
        (0, {}, {}, 8, ", in the prefill"),
        (0, {}, {}, 7, ", in the last chunk of the prefill"),
        (0, {"cached_tokens": 4}, {}, 7, ", in the prefill after a prefix hit of 4 tokens"),
        (1, {}, {}, 7, ", in verify round 1"),
        (3, {}, {}, None, ", in verify round 1"),
        (4, {}, {"min_p": 0.1}, None, ", in verify round 2 under min_p"),
        (6, {}, {"logit_bias": ((1, 2.0),), "repetition_penalty": 1.2}, None, f", in verify round 3 under {BOTH}"),
        (7, {}, {}, None, ""),
        (2, {"accept_lengths": ()}, {}, None, ""),
        (2, {"accept_lengths": ()}, {"allowed_token_ids": ()}, None, ", under allowed_token_ids"),
        (2, {"retractions": 1}, {}, 4, ", in a request with 1 retraction"),
    ],
)
def test_where_a_token_was_decided(index, changes, rules, chunk, phase):
    request = RequestSpec("q1", "", 7, **rules)
    assert phase_of(request, replace(ANSWER, **changes), index, chunk) == phase
