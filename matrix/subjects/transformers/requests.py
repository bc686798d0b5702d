"""Requests with logit rules and stops, one rule per request, some of them specific to transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.build import DRAWS, workload
from specmatrix.matrix.workloads.questions import questions, token_id, tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import COMMON, EARLY_EOS
from specmatrix.matrix.zoo.tokenizer import EOS_ID

MAX_TOKENS: Final = 48  # tokens: enough rounds for each rule to act at every place within one
GROUP: Final = 3  # tokens of a sequence
LENGTH: Final = 80  # tokens of a text, longer than every prompt
Rule = dict[str, Any]


def _own(**arguments: object) -> Rule:
    """Arguments of generate() that no other engine has."""
    return {"own": json.dumps(arguments)}


def _rules(answer: Sequence[int]) -> tuple[Rule, ...]:
    """The logits processors of generate() that assisted generation combines with, for a question whose answer has these
    tokens. The n-th has the n-th stop, in turns, if a cell has both: an exponential decay, which needs EOS, never meets
    a ban of EOS, which it turns into nan.

    Not here: guidance_scale and SynthID's watermarks, whose state drafts damage (docs/findings.md)."""
    groups = [[*answer[at : at + GROUP]] for at in range(0, len(answer) - GROUP + 1, GROUP)]
    return (
        {"repetition_penalty": 2.0},
        {"logit_bias": tuple((token, -25.0) for token in COMMON)},
        {"bad_words_ids": tuple(map(tuple, groups))},
        {"allowed_token_ids": tuple(range(0, 768, 3)) + COMMON, "min_new_tokens": 24},
        _own(sequence_bias=[[group, -20.0] for group in groups]),
        _own(no_repeat_ngram_size=3),
        _own(encoder_repetition_penalty=3.0),
        _own(encoder_no_repeat_ngram_size=3),
        _own(suppress_tokens=COMMON, remove_invalid_values=True),
        {**_own(exponential_decay_length_penalty=(10, 1.2)), "ignore_eos": False},
        _own(forced_eos_token_id=EOS_ID),
        _own(prefix_allowed_tokens_fn=3),
        _own(begin_suppress_tokens=answer[:GROUP]),
        _own(watermarking_config={"bias": 12.0, "context_width": 2}, renormalize_logits=True),
        {**_own(forced_bos_token_id=COMMON[0]), "prompt": ""},
    )


# For sampled requests: sampling parameters, and processors that change the distribution.
SAMPLED: Final[tuple[Rule, ...]] = (
    {"min_p": 0.1},
    _own(typical_p=0.8),
    _own(top_h=0.6),
    _own(epsilon_cutoff=0.02),
    _own(eta_cutoff=0.05),
    {"repetition_penalty": 2.0},
    _own(no_repeat_ngram_size=1),
    _own(watermarking_config={"bias": 3.0}),
)
# EOS lists, stops in spite of an ignored EOS, and lengths of the output and of the whole text before which none counts.
STOPS: Final[tuple[Rule, ...]] = (
    EARLY_EOS,
    {"stop_token_ids": (token_id(">>"), token_id("####"))},
    {"stop_token_ids": (token_id("####"),), "ignore_eos": True},
    {**_own(min_length=LENGTH), "logit_bias": ((EOS_ID, 60.0),)},
)


def own_requests(cell: Cell, seed: int, draws: int = DRAWS) -> Sequence[RequestSpec]:
    """The requests of a cell for a seed: the matrix's, but one for each rule where a cell has rules, and one for each
    stop where it has several; if it has both, each rule with a stop. They ask the questions of a batch in turns."""
    ruled, stopped = cell.sampling == "rules", cell.finish == "stops"
    every = workload(cell, seed, draws)
    if not (ruled or stopped):
        return every
    drawn = [request for request in every if request.name.startswith("d")]
    asked = workload(Cell(batch="mixed_lengths", finish="eos" if stopped else cell.finish), seed)[: len(STOPS)]
    rules = [_rules(_answer(request)) if ruled else ({},) for request in asked]
    if ruled and cell.algorithm == "nextn":
        # MTP with two layers may crash after a prompt of one token, which the last rule needs (docs/findings.md).
        rules = [one[:-1] for one in rules]
    stops = STOPS if stopped else ({},)
    texts = [
        _with(asked[n % len(asked)], rules[n % len(asked)][n % len(rules[0])], stops[n % len(stops)])
        for n in range(max(len(rules[0]), len(stops)))
    ]
    return [*texts, *(replace(draw, **{"min_p": 0.0, **SAMPLED[n % len(SAMPLED)]}) for n, draw in enumerate(drawn))]


def _answer(request: RequestSpec) -> list[int]:
    """The tokens of the reference answer to a request's question."""
    _, answer = questions()[int(request.name.removeprefix("q"))]
    return [int(token) for token in tokenizer().encode(" " + answer, add_special_tokens=False).ids]


def _with(plain: RequestSpec, rule: Rule, stop: Rule) -> RequestSpec:
    """A request with a rule (part of its name if given) and a stop; their biases are joined."""
    own = {name: value for one in (rule, stop) for name, value in json.loads(one.get("own", "{}")).items()}
    found = {**rule, **stop, "own": json.dumps(own) if own else "", "logprobs": True}
    if "logit_bias" in found:
        found["logit_bias"] = rule.get("logit_bias", ()) + stop.get("logit_bias", ())
    named = {**rule, **json.loads(rule.get("own", "{}"))}
    names = [name for name in named if name not in ("own", "ignore_eos", "prompt")]
    longest = min(MAX_TOKENS, plain.max_new_tokens)
    return replace(plain, name=".".join([plain.name, *names]), max_new_tokens=longest, **found)
