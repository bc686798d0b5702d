from bisect import bisect
from dataclasses import replace
from itertools import accumulate
from math import exp, log

import pytest

from specmatrix.matrix.gates.distribution import DistributionGate, place
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Capability
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec

PLAIN = "standalone.s3.k2.n6.v2.p16.temperature"
GATE = DistributionGate()
CONTEXT = ((7, log(0.5)), (2, log(0.3)), (9, log(0.15)), (4, log(0.05)))


def drawn(run, choose, share=1):
    """The run with every `share`-th draw replaced by the tokens that `choose` picks by the answer's distributions."""
    answers = []
    for number, answer in enumerate(run.answers):
        if answer.name.startswith("d") and number % share == 0:
            ids = tuple(choose(answer.name, context) for context in answer.top_logprobs)
            own = tuple(dict(context)[token] for context, token in zip(answer.top_logprobs, ids, strict=True))
            answer = replace(answer, output_ids=ids, logprobs=own)
        answers.append(answer)
    return replace(run, answers=tuple(answers))


def test_a_sampler_that_prefers_the_best_token_or_uses_a_coin_again_fails(measured):
    def again(name, context):
        ordered = sorted(context)
        level = list(accumulate(exp(value) for _, value in ordered))
        return ordered[bisect(level, (int(name[1:]) * 0.6180339887) % 1.0 * level[-1])][0]

    found = measured(PLAIN)
    best = found.judge(GATE, drawn(found.run, lambda _, context: context[0][0], share=4))
    serial = found.judge(GATE, drawn(found.run, again))
    for outcome, p, text in (
        (best, best.numbers["p"], "sampled tokens do not follow the target's distribution"),
        (serial, serial.numbers["serial_p"], "a sampled token depends on the random draw before it"),
    ):
        text = f"{text} (Kolmogorov-Smirnov p = {p:.2g})"
        assert (outcome.state, outcome.message) == (State.FAIL, text) and p < 1e-4
    assert serial.numbers["p"] > 1e-4


def test_an_output_that_is_drawn_too_often_fails_though_each_token_follows_its_law(measured):
    found = measured(PLAIN)
    one = next(answer for answer in found.run.answers if answer.name == "d0")
    every = [i for i, answer in enumerate(found.run.answers) if answer.name.startswith("d")]
    answers = list(found.run.answers)
    for index in every[::8]:
        answers[index] = replace(one, name=answers[index].name)
    outcome, right = found.judge(GATE, answers=tuple(answers)), found.judge(GATE)
    p, bins = outcome.numbers["joint_p"], outcome.numbers["bins"]
    text = f"outputs of 3 tokens do not follow the target's distribution (chi-square over {bins} bins, p = {p:.2g})"
    assert (outcome.state, outcome.message) == (State.FAIL, text) and p < 1e-5 < right.numbers["joint_p"]
    assert outcome.numbers["p"] > 1e-4 and 0.05 < right.numbers["variation"] < right.numbers["detectable"] < 0.3
    rules = tuple(replace(request, presence_penalty=0.1) for request in found.run.requests)
    assert "joint_p" not in found.judge(GATE, requests=rules).numbers


def lossy(loss, needs=GATE.needs):
    return DistributionGate(needs=needs, accepts=lambda cell: AcceptanceRule("lossy", "its threshold", loss))


@pytest.mark.parametrize(
    ("loss", "end"),
    [
        (0.0, "do not follow the target's distribution (chi-square over "),
        (0.02, "from the target's distribution; the subject's profile states 0.02 at most"),
        (0.6, ""),
    ],
)
def test_a_loss_is_red_unless_the_profile_states_as_much(measured, loss, end):
    """Half of the outputs are one, which a rule that accepts it too often would give."""
    found = measured(PLAIN)
    one = next(answer for answer in found.run.answers if answer.name == "d0")
    answers = [
        replace(one, name=answer.name) if answer.name.startswith("d") and int(answer.name[1:]) % 4 > 1 else answer
        for answer in found.run.answers
    ]
    gate = lossy(loss, needs=frozenset({Capability.TOKEN_IDS}))
    bare = tuple(replace(answer, logprobs=(), top_logprobs=()) for answer in answers)
    outcome = found.judge(gate, answers=bare)
    assert end in outcome.message and outcome.state is (State.FAIL if end else State.PASS)
    assert outcome.numbers["draws"] == 200 and 0.3 < outcome.numbers["variation"] < 0.6
    few = found.verdict(gate, requests=found.run.requests[:30], answers=bare[:30])
    assert few == "NOT MEASURED: 29 equal requests were sampled; the test needs at least 100"


def test_a_stated_loss_does_not_excuse_what_is_beyond_it_in_single_tokens_or_log_probabilities(measured, altered):
    found = measured(PLAIN)
    some = drawn(found.run, lambda _, context: context[0][0], share=4)
    assert found.judge(lossy(0.3), some).state is State.PASS and found.judge(GATE, some).state is State.FAIL
    every = found.judge(lossy(0.1), drawn(found.run, lambda _, context: context[0][0]))
    assert every.message.startswith("sampled tokens do not follow the target's distribution"), every
    narrow = tuple(replace(request, top_k=1) for request in found.run.requests)
    outside = found.judge(lossy(0.3), requests=narrow)
    assert outside.message.endswith("sampled tokens are outside their top-k and top-p set"), outside
    tight = tuple(replace(request, top_k=40) for request in found.run.requests)
    assert found.judge(GATE, requests=tight).numbers["outside"] > 0
    excused = found.judge(lossy(0.3), requests=tight)
    assert excused.state is State.PASS and excused.numbers["outside"] == 0 < excused.numbers["outside_by_loss"]
    ((token, score), *others), *rest = found.baseline.answers[-1].top_logprobs
    off = altered(found.baseline, -1, top_logprobs=(((token, score + 0.01), *others), *rest))
    assert found.judge(lossy(0.3), None, off).message.startswith("a log-probability differs from plain decoding's")


def test_tokens_outside_the_support_are_counted(measured):
    found = measured(PLAIN)
    greedy = tuple(replace(request, top_k=1) for request in found.run.requests)
    draws = [
        token == context[0][0]
        for answer in found.run.answers
        if answer.name.startswith("d")
        for token, context in zip(answer.output_ids, answer.top_logprobs, strict=True)
    ]
    outcome, outside = found.judge(GATE, requests=greedy), draws.count(False)
    text = f"{outside} of {len(draws)} sampled tokens are outside their top-k and top-p set"
    assert (outcome.state, outcome.message, outcome.numbers["outside"]) == (State.FAIL, text, outside)


@pytest.mark.parametrize(("nats", "state"), [(0.9e-3, State.PASS), (1.1e-3, State.FAIL)])
def test_a_log_probability_may_differ_by_rounding_only(measured, altered, nats, state):
    found = measured(PLAIN)
    ((token, score), *others), *rest = found.baseline.answers[-1].top_logprobs
    off = altered(found.baseline, -1, top_logprobs=(((token, score + nats), *others), *rest))
    outcome = found.judge(GATE, None, off)
    text = f"a log-probability differs from plain decoding's or from its own top list by {nats:g} nats"
    assert (outcome.state, outcome.message) == (state, "" if state is State.PASS else text)
    assert outcome.numbers["logprob_gap"] == pytest.approx(nats) and 0 < outcome.numbers["statistic"] < 0.1
    fast = replace(found.prepared, cell=found.prepared.cell._replace(numerics="fast"))
    assert GATE.judge(fast, found.run, off).numbers["logprob_gap"] < 1e-5, "the gate `precision` compares these"


def test_too_few_draws_or_log_probabilities_are_not_measured(measured, altered):
    found, run = measured(PLAIN), measured(PLAIN).run
    less = replace(found.baseline, answers=found.baseline.answers[1:])
    text = f"NOT MEASURED: the baseline has no answer for request {run.requests[0].name}"
    assert found.verdict(GATE, None, less) == text
    few = found.judge(GATE, requests=run.requests[:30], answers=run.answers[:30])
    text = "87 tokens were sampled; the test needs at least 100"
    assert (few.state, few.message, few.numbers) == (State.NOT_MEASURED, text, {"draws": 87})
    short = found.judge(GATE, altered(run, -1, logprobs=run.answers[-1].logprobs[:1]))
    assert short.state is State.NOT_MEASURED
    text = (
        f"the subject does not report log-probabilities for all {tokenizer().get_vocab_size()} tokens of the vocabulary"
    )
    assert found.verdict(GATE, altered(run, -1, top_logprobs=())) == f"NOT MEASURED: {text}"


@pytest.mark.parametrize(
    ("filters", "token", "expected"),
    [
        ({}, 9, (0.8, 0.15)),
        ({"top_k": 2}, 2, (0.625, 0.375)),
        ({"top_k": 2}, 9, (1.0, 0.0)),
        ({"top_p": 0.8}, 2, (0.625, 0.375)),
        ({"top_p": 0.81}, 9, (0.8 / 0.95, 0.15 / 0.95)),
        ({"top_p": 0.79}, 9, (1.0, 0.0)),
        ({}, 5, (1.0, 0.0)),
        ({"min_p": 0.31}, 9, (1.0, 0.0)),
        ({"min_p": 0.31}, 2, (0.625, 0.375)),
        ({"min_p": 0.29}, 9, (0.8 / 0.95, 0.15 / 0.95)),
    ],
)
def test_filters_renormalise_in_turn(filters, token, expected):
    request = RequestSpec("d0", "", 1, temperature=1.0, **filters)
    assert place(request, CONTEXT, token, 1e-5) == pytest.approx(expected)
