"""What requests ask beyond plain sampling and single stops, by place in the batch, so that each step mixes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.subjects.protocol import RequestSpec

# Ids of frequent tokens of answers: digits, signs and short words.
COMMON: Final = (449, 273, 27, 749, 313, 222, 24, 22, 19, 20, 16, 17)
# By place; a request with more than one rule shows their order. At a high temperature min_p has much to remove,
# and rewards for repetition, unlike penalties, show in the log-probability of every token.
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"repetition_penalty": 0.8, "frequency_penalty": -0.4, "presence_penalty": -0.5},
    {"temperature": 2.5, "min_p": 0.2, "presence_penalty": -0.7},
    {"bad_words_ids": tuple((one, other) for one in COMMON[:8] for other in COMMON[:8])},
    {"logit_bias": tuple((token, -2.5) for token in COMMON), "repetition_penalty": 1.1},
    {"allowed_token_ids": tuple(range(0, 768, 3)) + COMMON, "min_new_tokens": 24, "logit_bias": ((21, 1.5),)},
)
# Strings of an answer that overlap, or end with the same token.
OVERLAPPING: Final = ("<<", "=<<", "####", "\n####")


def ruled(request: RequestSpec, place: int) -> RequestSpec:
    """The request with the logit rules of its place, and log-probabilities, which show each rule's every effect."""
    return replace(request, logprobs=True, **RULES[place % len(RULES)])


def stopped(request: RequestSpec, place: int, stop: str, stop_id: int) -> RequestSpec:
    """The request with the stops of its place. stop: a string that its answer has, stop_id: a token of it."""
    ways: tuple[dict[str, Any], ...] = (
        {"min_new_tokens": 70},
        {"stop": (stop,), "no_stop_trim": True},
        {"stop": OVERLAPPING},
        {"stop_token_ids": (stop_id,), "ignore_eos": True, "no_stop_trim": True},
        {"stop": (stop, "\n\n"), "stream": True},
    )
    return replace(request, **ways[place % len(ways)])
