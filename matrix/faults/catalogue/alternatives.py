"""Allowed tokens, and the alternatives of output tokens."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

RULES: Final = "logit rules"
SCORES: Final = "logprob"
RULED: Final = "none.ragged.rules"
RULED_TREE: Final = "eagle3.s3.k4.n8.v2.p16.ragged.rules"
DRAWN_TREE: Final = "eagle3.s3.k4.n8.v2.p16.ragged.temperature"

ALTERNATIVE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="allowed-at-the-root",
        klass=RULES,
        origin="rule: allowed tokens are the only ones at every node of a round",
        within="LogitRules._banned",
        old="rules.allowed, True)[:, None, :-1] | rules.free)\n",
        new=(
            "rules.allowed, True)[:, None, :-1] | rules.free)\n"
            "            banned = banned & (count(nodes, known.device) == 0)[:, None]\n"
        ),
        expected=("lossless",),
        cells=(RULED_TREE,),
        why="after an accepted draft of the same round any token may follow",
    ),
    Fault(
        id="allowed-beside-free-requests",
        klass=RULES,
        origin="rule: a request's allowed tokens hold whatever else is in its batch",
        within="LogitRules._gathered",
        old="        if any(params.allowed_token_ids is not None for params in asked):\n",
        new="        if all(params.allowed_token_ids is not None for params in asked):\n",
        expected=("lossless",),
        cells=(RULED,),
        why="allowed tokens are forgotten while another request of the batch has none",
    ),
    Fault(
        id="allowed-with-eos",
        klass=RULES,
        origin="rule: EOS too is banned unless it is listed",
        within="LogitRules._gathered",
        old="            lists = [list(params.allowed_token_ids or ()) for params in asked]\n",
        new="            lists = [[*(params.allowed_token_ids or ()), *self.eos_ids] for params in asked]\n",
        expected=("lossless",),
        cells=(RULED,),
        why="a request may end by EOS, which is not among its allowed tokens",
    ),
    Fault(
        id="alternatives-once-per-round",
        klass=SCORES,
        origin="sglang#14046, sglang#10660",
        within="Loop._note_logprobs",
        old="for column in result.top_logprobs[index][:taken])\n",
        new="for column in result.top_logprobs[index][:1])\n",
        expected=("finish",),
        cells=(RULED_TREE,),
        why="only the first token of a round gets alternatives",
    ),
    Fault(
        id="alternatives-of-the-rounds-end",
        klass=SCORES,
        origin="sglang#17373",
        within="Loop._note_logprobs",
        old="for column in result.top_logprobs[index][:taken])\n",
        new="for column in result.top_logprobs[index][-taken:])\n",
        expected=("lossless",),
        cells=(RULED_TREE,),
        why="a partly accepted round reports the right number of alternatives, but those of its last positions",
    ),
    Fault(
        id="alternatives-one-late",
        klass=SCORES,
        origin="rule: alternatives belong to the token at their place",
        within="_with_logprobs",
        old="        values, ids = top_logprobs(logits, plan.logprobs, rows)\n",
        new="        values, ids = top_logprobs(logits.roll(1, 1), plan.logprobs, rows)\n",
        expected=("lossless",),
        cells=(RULED_TREE,),
        why="a token's alternatives are those of the token before it in the round",
    ),
    Fault(
        id="alternatives-without-temperature",
        klass=SCORES,
        origin="rule: alternatives have the temperature of the token that was drawn",
        within="_with_logprobs",
        old="        values, ids = top_logprobs(logits, plan.logprobs, rows)\n",
        new="        values, ids = top_logprobs(logits, plan.logprobs)\n",
        expected=("distribution",),
        cells=(DRAWN_TREE,),
        why="the alternatives of a sampled token are scored before its temperature",
    ),
)
