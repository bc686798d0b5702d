"""Logit rules and stop conditions of requests, by place in the batch, so that each step mixes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.tokenizer import EOS_ID

# Ids of frequent tokens of answers: digits, signs and short words.
COMMON: Final = (449, 273, 27, 749, 313, 222, 24, 22, 19, 20, 16, 17)
# By place. A request with more than one rule tests their order. At a high temperature min_p removes many tokens.
# Rewards for repetition, unlike penalties, affect the log-probability of every token. Log-probabilities of a prompt
# imply those of the output. The last prompt may be in the prefix cache.
RULES: Final[tuple[dict[str, Any], ...]] = (
    {
        **{"repetition_penalty": 0.8, "frequency_penalty": -0.4, "presence_penalty": -0.5},
        **{"prompt_logprobs": 0, "top_logprobs": 2},
    },
    {"temperature": 5.0, "min_p": 0.1, "presence_penalty": -0.7, "n": 2, "seed": 0},
    {
        "bad_words_ids": tuple((one, other) for one in COMMON[:8] for other in COMMON[:8]),
        **{"prompt_logprobs": 0, "logprobs": False},
    },
    {
        "logit_bias": tuple((token, -2.5) for token in COMMON),
        "repetition_penalty": 1.1,
        "temperature": 2.0,
        "seed": None,
    },
    {
        **{"allowed_token_ids": tuple(range(0, 768, 3)) + COMMON, "min_new_tokens": 24, "logit_bias": ((21, 1.5),)},
        **{"prompt_logprobs": 9},
    },
)
# For the later turns of sessions: the first for greedy turns, the second for sampled ones.
LATER_TURN_RULES: Final[tuple[dict[str, Any], ...]] = (
    {"repetition_penalty": 0.8, "presence_penalty": -0.5},
    {"frequency_penalty": -0.6, "bad_words_ids": tuple((one, other) for one in COMMON[:8] for other in COMMON[:8])},
)
# Stop strings that occur in answers and begin or end with the same token, or contain one another.
OVERLAPPING: Final = ("<<", "=<", "=<<", "####", "\n####")
OVERLAPS: Final = 2  # the place of a request with these
# Its last character is its own token.
TWO_TOKEN_STOP: Final = ".\n"
# A prefix of each occurs in answers, all but its last letter of some, so a reader must wait for the next token; the
# whole string does not. The last one's is shorter where the one before it begins too.
BEGUN: Final = (*(f"{digit}~" for digit in range(10)), "=<<~~", "<~")
# EOS is likely enough to end a request as soon as its minimum length allows, within a round.
EARLY_EOS: Final = {"min_new_tokens": 41, "logit_bias": ((EOS_ID, 60.0),), "logprobs": True}
# For engines without biases: a minimum length behind which every answer has ended.
LATE: Final = 90
BAD_WORDS_TOKENS: Final = 3


def ruled(request: RequestSpec, place: int, answer: Sequence[int]) -> RequestSpec:
    """The request with the logit rules of its place, and log-probabilities, which show the effects of each rule.
    answer: the tokens of the reference answer; bad words forbid its consecutive groups of three."""
    rules = RULES[place % len(RULES)]
    if "bad_words_ids" in rules:
        size = BAD_WORDS_TOKENS
        groups = tuple(tuple(answer[at : at + size]) for at in range(0, len(answer) - size + 1, size))
        rules = {**rules, "bad_words_ids": rules["bad_words_ids"] + groups}
    return replace(request, **{"logprobs": True, **rules})


def with_chat_rules(turns: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The turns of sessions, with logit rules for those with a history; the rules treat the history as a prompt."""
    return [
        replace(turn, logprobs=True, **LATER_TURN_RULES[turn.temperature > 0], **_late(turn))
        if turn.session is not None and turn.session.follows is not None and turn.refused is None
        else turn
        for turn in turns
    ]


def _late(turn: RequestSpec) -> dict[str, Any]:
    """More stop tokens of a greedy turn, which may not end it before its limit."""
    if turn.temperature or turn.grammar is not None:
        return {}
    return {"stop_token_ids": (*turn.stop_token_ids, *COMMON[:4]), "min_new_tokens": turn.max_new_tokens}


def stopped(request: RequestSpec, place: int, stop: str, stop_id: int) -> RequestSpec:
    """The request with the stops of its place. stop: a string in its answer; stop_id: a token in it."""
    ways: tuple[dict[str, Any], ...] = (
        EARLY_EOS,
        {"stop": (TWO_TOKEN_STOP,), "no_stop_trim": True},
        {"stop": OVERLAPPING},
        {"stop_token_ids": (stop_id,), "ignore_eos": True, "no_stop_trim": True, "n": 2},
        {"stop": (stop, *BEGUN), "stream": True},
    )
    return replace(request, **ways[place % len(ways)])
