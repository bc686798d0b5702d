from bisect import bisect
from dataclasses import replace
from itertools import accumulate
from math import exp, log

import pytest

from specmatrix.matrix.gates.distribution import DistributionGate, place
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.workloads.build import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec

PLAIN = "standalone.s3.k2.n6.v2.p16.temperature"
FILTERED = "standalone.s3.k2.n6.v2.p16.topk_topp"
GATE = DistributionGate()
CONTEXT = ((7, log(0.5)), (2, log(0.3)), (9, log(0.15)), (4, log(0.05)))


def drawn(run, choose, share=1):
    """The run with every `share`-th draw replaced by the token that `choose` picks from its own distribution."""
    answers = []
    for number, answer in enumerate(run.answers):
        if answer.name.startswith("d") and number % share == 0:
            ids = tuple(choose(context) for context in answer.top_logprobs)
            own = tuple(dict(context)[token] for context, token in zip(answer.top_logprobs, ids, strict=True))
            answer = replace(answer, output_ids=ids, logprobs=own)
        answers.append(answer)
    return replace(run, answers=tuple(answers))


@pytest.mark.nightly
@pytest.mark.parametrize("cell_id", [PLAIN, FILTERED])
def test_the_reference_engine_draws_from_the_target(measured, cell_id):
    outcome = GATE.judge(*measured(cell_id))
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["draws"] == 600 and outcome.numbers["outside"] == 0


def test_a_sampler_that_prefers_the_best_token_fails(measured):
    prepared, run, baseline = measured(PLAIN)
    outcome = GATE.judge(prepared, drawn(run, lambda context: context[0][0], share=4), baseline)
    text = f"sampled tokens do not follow the target's distribution (Kolmogorov-Smirnov p = {outcome.numbers['p']:.2g})"
    assert (outcome.state, outcome.message) == (State.FAIL, text) and outcome.numbers["p"] < 1e-4


def test_a_coin_that_is_used_again_fails(measured):
    prepared, run, baseline = measured(PLAIN)

    def again(answer):
        if not answer.name.startswith("d"):
            return answer
        coin = (int(answer.name[1:]) * 0.6180339887) % 1.0
        ids = []
        for context in answer.top_logprobs:
            ordered = sorted(context)
            level = list(accumulate(exp(value) for _, value in ordered))
            ids.append(ordered[bisect(level, coin * level[-1])][0])
        own = tuple(dict(context)[token] for context, token in zip(answer.top_logprobs, ids, strict=True))
        return replace(answer, output_ids=tuple(ids), logprobs=own)

    outcome = GATE.judge(prepared, replace(run, answers=tuple(map(again, run.answers))), baseline)
    assert outcome.state is State.FAIL
    p = outcome.numbers["serial_p"]
    assert outcome.message == f"a sampled token depends on the random draw before it (Kolmogorov-Smirnov p = {p:.2g})"
    assert outcome.numbers["p"] > 1e-4 > p


def test_tokens_outside_the_support_are_counted(measured):
    prepared, run, baseline = measured(PLAIN)
    greedy = replace(run, requests=tuple(replace(request, top_k=1) for request in run.requests))
    draws = [
        token == context[0][0]
        for answer in run.answers
        if answer.name.startswith("d")
        for token, context in zip(answer.output_ids, answer.top_logprobs, strict=True)
    ]
    outcome = GATE.judge(prepared, greedy, baseline)
    outside = draws.count(False)
    text = f"{outside} of {len(draws)} sampled tokens are outside their top-k and top-p set"
    assert (outcome.state, outcome.message, outcome.numbers["outside"]) == (State.FAIL, text, outside)


@pytest.mark.nightly
def test_one_token_outside_the_support_fails(measured):
    prepared, run, baseline = measured(FILTERED)
    outcome = GATE.judge(prepared, drawn(run, lambda context: context[12][0], share=200), baseline)
    assert outcome.state is State.FAIL and "outside their top-k and top-p set" in outcome.message


@pytest.mark.parametrize(("nats", "state"), [(0.9e-3, State.PASS), (1.1e-3, State.FAIL)])
def test_a_log_probability_may_differ_by_rounding_only(measured, altered, nats, state):
    prepared, run, baseline = measured(PLAIN)
    last = baseline.answers[-1]
    moved = ((last.top_logprobs[0][0][0], last.top_logprobs[0][0][1] + nats), *last.top_logprobs[0][1:])
    off = altered(baseline, -1, top_logprobs=(moved, *last.top_logprobs[1:]))
    outcome = GATE.judge(prepared, run, off)
    text = f"a log-probability differs from plain decoding's or from its own top list by {nats:g} nats"
    assert (outcome.state, outcome.message) == (state, "" if state is State.PASS else text)
    assert outcome.numbers["logprob_gap"] == pytest.approx(nats) and 0 < outcome.numbers["statistic"] < 0.1
    fast = replace(prepared, cell=prepared.cell._replace(numerics="fast"))
    assert GATE.judge(fast, run, off).numbers["logprob_gap"] < 1e-5, "the gate `precision` compares these"


def test_too_few_draws_or_log_probabilities_are_not_measured(measured, altered):
    prepared, run, baseline = measured(PLAIN)
    outcome = GATE.judge(prepared, run, replace(baseline, answers=baseline.answers[1:]))
    text = f"the baseline has no answer for request {run.requests[0].name}"
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
    few = replace(run, requests=run.requests[:30], answers=run.answers[:30])
    outcome = GATE.judge(prepared, few, baseline)
    assert (outcome.state, outcome.message, outcome.numbers) == (
        State.NOT_MEASURED,
        "87 tokens were sampled; the test needs at least 100",
        {"draws": 87},
    )
    short = GATE.judge(prepared, altered(run, -1, logprobs=run.answers[-1].logprobs[:1]), baseline)
    assert short.state is State.NOT_MEASURED
    blind = GATE.judge(prepared, altered(run, -1, top_logprobs=()), baseline)
    size = tokenizer().get_vocab_size()
    text = f"the subject does not report log-probabilities for all {size} tokens of the vocabulary"
    assert (blind.state, blind.message) == (State.NOT_MEASURED, text)


@pytest.mark.parametrize(
    ("top_k", "top_p", "token", "expected"),
    [
        (-1, 1.0, 9, (0.8, 0.15)),
        (2, 1.0, 2, (0.625, 0.375)),
        (2, 1.0, 9, (1.0, 0.0)),
        (-1, 0.8, 2, (0.625, 0.375)),
        (-1, 0.81, 9, (0.8 / 0.95, 0.15 / 0.95)),
        (-1, 0.79, 9, (1.0, 0.0)),
        (-1, 1.0, 5, (1.0, 0.0)),
    ],
)
def test_filters_renormalise_in_turn(top_k, top_p, token, expected):
    request = RequestSpec("d0", "", 1, temperature=1.0, top_k=top_k, top_p=top_p)
    assert place(request, CONTEXT, token, 1e-5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("min_p", "token", "expected"),
    [(0.31, 9, (1.0, 0.0)), (0.31, 2, (0.625, 0.375)), (0.29, 9, (0.8 / 0.95, 0.15 / 0.95))],
)
def test_tokens_below_min_p_are_outside(min_p, token, expected):
    request = RequestSpec("d0", "", 1, temperature=1.0, min_p=min_p)
    assert place(request, CONTEXT, token, 1e-5) == pytest.approx(expected)
