"""Every logit rule at every node of random trees, against the logits processors of transformers."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from transformers import MinPLogitsWarper, NoBadWordsLogitsProcessor, TemperatureLogitsWarper

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.logit_rules import LogitRules, NodeContext, without_unlikely

VOCAB, EOS, POSITIONS = 12, frozenset({11}), 20
CPU = torch.device("cpu")
WORDS = ((3,), (1, 2), (2, 2), (0, 1, 4), (1, 0, 7), (2, 1, 5), (0, 0, 1, 8), (1, 2, 0, 9))
ASKS = {
    "nothing": SamplingParams(),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "repetition below 1": SamplingParams(repetition_penalty=0.6),
    "frequency": SamplingParams(frequency_penalty=0.7),
    "presence": SamplingParams(presence_penalty=-0.9),
    "bias": SamplingParams(logit_bias={2: 3.5, 7: -100}),
    "bad words": SamplingParams(bad_words_ids=WORDS),
    "allowed": SamplingParams(allowed_token_ids=[1, 4, 5]),
    "at least": SamplingParams(min_new_tokens=4, stop_token_ids=(6,)),
    "all": SamplingParams(
        logit_bias={1: -2.5},
        repetition_penalty=1.3,
        frequency_penalty=-0.4,
        presence_penalty=1.5,
        bad_words_ids=WORDS,
        allowed_token_ids=[1, 2, 3, 4, 5, 11, 6],
        min_new_tokens=6,
    ),
}


def arrive(row: int, params: SamplingParams, prompt: int, tokens: list[int]) -> PlanRow:
    arrived = (prompt, tuple(tokens)) if params.adjusts else None
    return PlanRow(row, row, row, 1, 1, 0, admit=(params, 0), arrived=arrived)


def processed(params: SamplingParams, prompt: int, text: list[int], logits: torch.Tensor) -> torch.Tensor:
    """transformers' answer for one node, whose text ends with its own token; penalties over the output by hand."""
    ids, scores = torch.tensor([text]), logits[None].clone()
    if params.logit_bias:
        scores = transformers.SequenceBiasLogitsProcessor({(t,): float(b) for t, b in params.logit_bias.items()})(
            ids, scores
        )
    if params.repetition_penalty != 1:
        scores = transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token in range(VOCAB):
        times = text[prompt:].count(token)
        scores[0, token] -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
    if params.bad_words_ids:
        # EOS by its own id may not be a bad word there.
        scores = NoBadWordsLogitsProcessor([list(words) for words in params.bad_words_ids], None)(ids, scores)
    if params.allowed_token_ids is not None:
        rest = sorted(set(range(VOCAB)) - set(params.allowed_token_ids))
        scores = transformers.SuppressTokensLogitsProcessor(rest)(ids, scores)
    if params.min_new_tokens:
        stops = sorted(EOS | {*params.stop_token_ids})
        scores = transformers.MinNewTokensLengthLogitsProcessor(prompt, params.min_new_tokens, stops)(ids, scores)
    return scores[0]


def random_tree(rng: random.Random, nodes: int) -> tuple[list[int], list[list[int]]]:
    """Parents, and each node's path without node 0."""
    parents, paths = [-1], [[]]
    for node in range(1, nodes):
        parents.append(rng.randrange(node))
        paths.append([*paths[parents[-1]], node])
    return parents, paths


def run(seed: int, nodes: int, chain: bool, asked: list[SamplingParams], kind: torch.dtype) -> None:
    """Texts are at least as long as the longest bad words: transformers does not ban the last of n tokens where the
    other n - 1 are the whole text."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    size = len(asked)
    rules = LogitRules(VOCAB, EOS, size + 2, POSITIONS, CPU)
    texts = [[rng.randrange(3) for _ in range(rng.randrange(5, 12))] for _ in asked]
    prompts = [rng.randrange(1, len(text) + 1) for text in texts]
    rows = [arrive(row, *ask) for row, ask in enumerate(zip(asked, prompts, texts, strict=True), 1)]
    rules.admit(rows)
    trees = [random_tree(rng, nodes) for _ in asked]
    if chain:
        trees = [([*range(-1, nodes - 1)], [[*range(1, n + 1)] for n in range(nodes)])] * size
    tokens = [[text[-1], *(rng.randrange(3) for _ in range(nodes - 1))] for text in texts]
    seen = torch.zeros(size, nodes, nodes, dtype=torch.bool)
    for b, (_, paths) in enumerate(trees):
        for n, path in enumerate(paths):
            seen[b, n, [0, *path]] = True
    at = NodeContext(
        torch.tensor([len(text) - 1 for text in texts]),
        POSITIONS,
        torch.tensor(tokens),
        torch.tensor([parents for parents, _ in trees]),
        torch.tensor([[len(path) for path in paths] for _, paths in trees]),
        None if chain else seen,
    )
    logits = (3 * torch.randn(size, nodes, VOCAB)).to(kind)
    numbers = torch.tensor([row.row for row in rows])
    got = rules.adjusted(logits, numbers, rules.of(rows), at)
    assert got.dtype == torch.float32
    for b, (params, prompt, text) in enumerate(zip(asked, prompts, texts, strict=True)):
        assert params.adjusts or torch.equal(got[b], logits[b].float())
        for n, path in enumerate(trees[b][1]):
            line = [*text, *(tokens[b][m] for m in path)]
            torch.testing.assert_close(got[b, n], processed(params, prompt, line, logits[b, n].float()))


@pytest.mark.parametrize("chain", [True, False], ids=["chain", "tree"])
@pytest.mark.parametrize("name", [name for name in ASKS if name != "nothing"])
def test_a_rule_at_each_node_is_transformers_at_its_text(name, chain):
    for seed in range(4):
        run(seed, 1 + seed * 2, chain, [ASKS[name]], torch.float32)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_requests_of_one_batch_keep_their_own_rules(kind):
    for seed in range(4):
        run(seed, 6, False, [*ASKS.values()], kind)


def test_a_later_request_of_a_row_brings_its_own_rules_and_tokens():
    rules = LogitRules(VOCAB, EOS, 2, POSITIONS, CPU)
    token = torch.zeros(1, 1, dtype=torch.int64)
    logits = torch.ones(1, 1, VOCAB)
    for params, text in ((ASKS["repetition"], [3, 4, 0]), (ASKS["frequency"], [5, 7])):
        row = arrive(1, params, 1, text)
        rules.admit([row])
        at = NodeContext(token[0] + len(text) - 1, 8, token + text[-1], token - 1, token, None)
        got = rules.adjusted(logits, torch.tensor([1]), rules.of([row]), at)
        torch.testing.assert_close(got[0, 0], processed(params, 1, text, logits[0, 0]))


@pytest.mark.parametrize(("text", "banned"), [([1], True), ([5, 1], True), ([1, 5], False)])
def test_bad_words_are_seen_where_the_text_begins_with_them(text, banned):
    rules = LogitRules(VOCAB, EOS, 2, POSITIONS, CPU)
    row = arrive(1, SamplingParams(bad_words_ids=((1, 2), (9, 9, 9, 1, 2))), 1, text)
    rules.admit([row])
    zero = torch.zeros(1, 1, dtype=torch.int64)
    at = NodeContext(zero[0] + len(text) - 1, 8, zero + text[-1], zero - 1, zero, None)
    got = rules.adjusted(torch.zeros(1, 1, VOCAB), torch.tensor([1]), rules.of([row]), at)
    assert got[0, 0].isinf().nonzero().flatten().tolist() == [2] * banned


def test_recorded_tokens_join_the_text_and_rejected_ones_are_written_over():
    rules = LogitRules(VOCAB, EOS, 3, POSITIONS, CPU)
    params = ASKS["all"]
    rows = [arrive(2, params, 2, [1, 0])]
    rules.admit(rows)
    two = torch.tensor([2])
    rules.record(two, two, torch.tensor([[1, 9, 9]]))  # only the first one counts
    rules.record(two, two + 1, torch.tensor([[4, 1, 9]]))
    text = [1, 0, 1, 4, 1]
    zero = torch.zeros(1, 1, dtype=torch.int64)
    at = NodeContext(two + 2, 8, zero + 1, zero - 1, zero, None)
    logits = torch.randn(1, 1, VOCAB)
    got = rules.adjusted(logits, two, rules.of(rows), at)
    torch.testing.assert_close(got[0, 0], processed(params, 2, text, logits[0, 0]))


@pytest.mark.parametrize("heat", [0.3, 1.0, 4.0])
def test_min_p_follows_the_temperature(heat):
    torch.manual_seed(0)
    logits = 2 * torch.randn(3, 2, VOCAB)
    share = torch.tensor([0.0, 0.1, 1.0]).view(3, 1, 1)
    got = without_unlikely(logits, torch.tensor([heat] * 3), share)
    assert torch.equal(got[0], logits[0]) and (got[2] > -torch.inf).sum() == 2
    warm = TemperatureLogitsWarper(heat)(torch.empty(0), logits[1])
    kept = MinPLogitsWarper(0.1)(torch.empty(0), warm) > -torch.inf
    assert torch.equal(got[1] > -torch.inf, kept) and torch.equal(got[1][kept], logits[1][kept])


def test_greedy_requests_keep_their_best_token_under_min_p():
    logits = torch.tensor([[[1.0, 3.0, 2.9]]])
    assert without_unlikely(logits, torch.zeros(1), torch.ones(1, 1, 1)).argmax(-1).item() == 1
