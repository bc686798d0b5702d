"""The gate of bf16, on a CPU: what float32 would choose along an answer, and where answers may part."""

from collections.abc import Container
from dataclasses import replace
from math import exp, log

import pytest
import torch
from scipy.stats import binom

from specmatrix.kernels.sample.reference import uniform
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.oracles import precision
from specmatrix.matrix.oracles.precision import EDGE, followed, log_odds, precise_tokens, random_number

CELL = "eagle3.s3.k4.n8.v2.fast.pair.mixed"


def shifted(name: str, places: Container[int], off: float, error: float = 0.0):
    """The oracle, except that some tokens of a request are `off`, and that all log-probabilities are."""

    def tokens(target, request, seed, prompt, output):
        known = precise_tokens("llama-mini", request, seed, prompt, output)
        moved = places if request.name == name else ()
        return [
            token._replace(logprob=token.logprob + error, **({"off": off} if place in moved else {}))
            for place, token in enumerate(known)
        ]

    return tokens


def with_model(found, model):
    """A measured cell as if it were one of another model."""
    return found._replace(prepared=replace(found.prepared, cell=found.prepared.cell._replace(model=model)))


def test_random_numbers_are_those_of_the_kernels_reference():
    seeds, positions = (0, 17, 2**62 + 5), (0, 1, 143)
    expected = uniform(torch.tensor(seeds), torch.tensor([positions] * 3)).tolist()
    assert [[random_number(seed, position) for position in positions] for seed in seeds] == expected


def offs(prepared, request, answer, seed):
    """How far off float32's choice each token of an answer is."""
    return [
        token.off for token in precise_tokens(prepared.cell.target, request, seed, answer.prompt_ids, answer.output_ids)
    ]


@pytest.mark.parametrize(
    "cell_id", ["eagle3.s3.k4.n8.v2.mixed_lengths.mixed", "eagle3.s3.k4.n8.v2.p16.mixed_lengths.rules.stops"]
)
def test_float32_chooses_the_tokens_of_an_engine_in_float32(measured, cell_id):
    prepared, run, _ = measured(cell_id)
    pairs = [pair for pair in zip(run.requests, run.answers, strict=True) if followed(pair[0])]
    ruled = "rules" in cell_id
    assert sum(request.ruled for request, _ in pairs) > 1 or not ruled
    assert {request.temperature > 0 for request, _ in pairs} >= ({False} if ruled else {False, True})
    for request, answer in pairs:
        seed = run.resolved["random_seed"] if request.seed is None else request.seed
        close = pytest.approx([0.0] * len(answer.output_ids), abs=1e-4 if ruled else 1e-6)
        assert offs(prepared, request, answer, seed) == close
        others = max(off for other in range(1, 5) for off in offs(prepared, request, answer, seed + other))
        # A rule may leave a sampled request one token to draw.
        assert request.temperature > 0 if others > 0.25 else ruled or not request.temperature


def test_a_drawn_token_is_as_far_off_as_logits_must_move_to_draw_it(measured):
    """Tokens share the interval from 0 to 1 in the order of their ids. An end of an interval divides them into two
    sets, whose odds logits that are wrong by up to e nats change by a factor of e^(2 e / temperature) at most."""
    request, answer = measured(CELL).run.requests[1], measured(CELL).run.answers[1]
    coin = log_odds(random_number(request.seed, len(answer.prompt_ids)))
    found = [precise_tokens("llama-mini", request, request.seed, answer.prompt_ids, (i,))[0] for i in range(41)]
    for token in (0, 5, 40):
        begin = sum(exp(lower.logprob) for lower in found[:token])
        ends = (min(max(share, EDGE), 1 - EDGE) for share in (begin, begin + exp(found[token].logprob)))
        begin, end = (log(share / (1 - share)) for share in ends)
        due = max(0.0, begin - coin, coin - end)
        assert found[token].off == pytest.approx(request.temperature * due, abs=1e-3)


@pytest.mark.parametrize("share", [0.0, 1e-9, 1.0, 1.0 + 1e-9])
def test_log_odds_at_the_edges_are_finite(share):
    assert log_odds(share) == log_odds(EDGE if share < 0.5 else 1 - EDGE)
    assert log_odds(0.5) == 0.0 and log_odds(0.75) == pytest.approx(log(3))


def test_logits_that_are_wrong_by_some_nats_move_a_drawn_token_by_twice_as_many_at_most(measured):
    """The tokens that wrong logits draw, with the random numbers of many seeds."""
    _, run, _ = measured(CELL)
    request, prompt = run.requests[1], run.answers[1].prompt_ids
    network, wrong = precision.network("llama-mini"), torch.Generator().manual_seed(0)
    right = network(torch.tensor([prompt]))[0]
    worst = 0.0
    for seed in range(60):
        noise = 0.3 * torch.rand(right.shape, generator=wrong).sub(0.5).sign()
        row = ((right + noise)[0, -1] / request.temperature).softmax(-1).double()
        token = int((row.cumsum(-1) <= random_number(seed, len(prompt))).sum())
        (found,) = precise_tokens("llama-mini", request, seed, prompt, (token,))
        worst = max(worst, found.off)
    assert 0.02 < worst <= 0.6 + 1e-4


def test_an_end_is_no_tie(measured):
    prepared, run, _ = measured(CELL)
    request, answer, gate = run.requests[0], run.answers[0], PrecisionGate()
    last = len(answer.output_ids)
    assert [gate.is_tie(prepared, run, request, answer, place) for place in (last - 1, last)] == [True, False]
    assert not gate.is_tie(prepared, run, replace(request, temperature=0.8, top_p=0.5), answer, 0)


def test_requests_whose_choice_is_not_simple_are_left_out(measured):
    _, run, _ = measured(CELL)
    greedy, sampled = run.requests
    assert followed(greedy) and followed(sampled) and followed(replace(greedy, min_new_tokens=3))
    assert not any(map(followed, (replace(sampled, top_k=3), replace(sampled, top_p=0.5), replace(sampled, min_p=0.1))))


def test_a_cell_in_bf16_passes_with_its_counts(measured):
    found, gate = measured(CELL), PrecisionGate()
    assert gate.applies(found.prepared.cell) and not gate.applies(Cell())
    outcome = found.judge(gate)
    tokens = sum(len(answer.output_ids) for answer in (*found.run.answers, *found.baseline.answers))
    assert outcome.state is State.PASS and outcome.numbers["tokens"] == tokens > 100
    assert 1e-5 < outcome.numbers["score_rms"] < 0.01 and outcome.numbers["scored"] > 50


@pytest.mark.parametrize(("place", "bound"), [(0, 0.25), (1, 0.75)])
def test_a_tie_is_counted_and_what_is_further_off_is_red(measured, place, bound):
    found, name, off = measured(CELL), measured(CELL).run.requests[place].name, bound - 0.01
    tied = found.judge(PrecisionGate(tokens=shifted(name, (7,), off)))
    assert (tied.state, tied.numbers["ties"], tied.numbers["tied_at"]) == (State.PASS, 2, f"{name}@7")
    assert tied.numbers["tied_share"] == 2 / tied.numbers["tokens"]
    assert [tied.numbers[key] for key in ("worst_nats", "worst_drawn")] == ([0.0, off] if place else [off, 0.0])
    red = found.judge(PrecisionGate(tokens=shifted(name, (7,), bound + 0.01)))
    assert red.state is State.FAIL and (red.blame.request, red.blame.token) == (name, 7)
    text = f"token 7 of {name} is {bound + 0.01} nats away from what float32 chooses, allowed {bound}"
    assert red.message == text and red.numbers["beyond"] == 2


def test_many_ties_and_other_log_probabilities_are_red(measured):
    def tied(*given: object):
        return [token._replace(off=0.02) for token in precise_tokens(*given)]

    verdict = measured(CELL).verdict(PrecisionGate(tokens=tied))
    assert verdict == "FAIL: the share of tokens that are not float32's is 1, allowed 0.05"
    outcome = measured(CELL).judge(PrecisionGate(tokens=shifted("", (), 0.0, error=0.04)))
    rms = outcome.numbers["score_rms"]
    text = f"the error of greedy tokens' log-probabilities (root mean square, in nats) is {rms:.3g}, allowed 0.03"
    assert (outcome.state, outcome.message) == (State.FAIL, text) and rms == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize("model", ["deepseek", "qwen3next"])
def test_a_router_may_give_as_many_tokens_other_experts_as_chance_explains(measured, model):
    """Of the 129 tokens of each run a share of 0.004 is 0.5, and 5 at most but once in 10,000 runs."""
    found, routed = measured(CELL), with_model(measured(CELL), model)
    size, share = len(found.run.answers[0].output_ids), PrecisionGate().thresholds["routed_share"]
    count = sum(len(answer.output_ids) for answer in found.run.answers)
    most = next(k for k in range(count) if binom.sf(k, count, share) < 1e-4)
    assert (count, most) == (129, 5)
    for off, due in ((most, (State.PASS, 2 * most, 0)), (most + 1, (State.FAIL, 0, 2 * (most + 1)))):
        gate = PrecisionGate(tokens=shifted(found.run.requests[0].name, range(size - off, size), 0.5))
        outcome = routed.judge(gate)
        assert (outcome.state, outcome.numbers["routed"], outcome.numbers["beyond"]) == due
        assert found.judge(gate).numbers["beyond"] == 2 * off


@pytest.mark.parametrize(("place", "what", "bound"), [(0, "greedy", 0.03), (1, "sampled", 0.06)])
def test_the_largest_errors_behind_a_router_are_not_in_the_mean(measured, altered, place, what, bound):
    found, routed = measured(CELL), with_model(measured(CELL), "deepseek")
    request, answer = found.run.requests[place], found.run.answers[place]
    known = precise_tokens("llama-mini", request, request.seed, answer.prompt_ids, answer.output_ids)
    scores = [token.logprob for token in known]
    gate = PrecisionGate(tokens=shifted("", (), 0.0))
    most = int(binom.isf(1e-4, len(scores), gate.thresholds["routed_share"]))
    assert 2 < most < len(scores) / 10
    lost = altered(found.run, place, logprobs=(float("nan"), *scores[1:]))
    assert routed.judge(gate, lost).state is State.FAIL, "no router gives that"
    for off, state in ((most, State.PASS), (most + 1, State.FAIL)):
        wrong = altered(found.run, place, logprobs=(*(score - 8 for score in scores[:off]), *scores[off:]))
        assert routed.judge(gate, wrong).state is state
        outcome = found.judge(gate, wrong)
        rms = outcome.numbers["sampled_rms" if place else "score_rms"]
        text = (
            f"the error of {what} tokens' log-probabilities (root mean square, in nats) is {rms:.3g}, allowed {bound}"
        )
        assert outcome.message == text


def test_few_tokens_are_not_spared_for_a_router(measured):
    found = with_model(measured(CELL), "deepseek")
    short = (
        replace(one, answers=tuple(replace(a, output_ids=a.output_ids[:4]) for a in one.answers)) for one in found[1:]
    )
    name = found.run.requests[0].name
    verdict = found.verdict(PrecisionGate(tokens=shifted(name, (3,), 0.5)), *short)
    assert verdict.startswith(f"FAIL: token 3 of {name} is 0.5 nats away")


@pytest.mark.parametrize(
    ("far", "state"), [(2, "PASS"), (3, "FAIL: 3 sampled tokens of a run are more than 0.25 nats away")]
)
def test_few_sampled_tokens_of_a_run_may_be_beyond_the_bound_of_greedy_ones(measured, far, state):
    found = measured(CELL)
    gate = PrecisionGate(tokens=shifted(found.run.requests[1].name, range(far), 0.3))
    assert found.verdict(gate).startswith(state) and found.judge(gate).numbers["far_draws"] == far


def test_other_random_numbers_are_red(measured):
    def other(target, request, seed, prompt, output):
        return precise_tokens(target, request, seed + 1, prompt, output)

    found = measured("none.fast.pair.stream.temperature")
    assert [found.judge(PrecisionGate(**given)).state for given in ({}, {"tokens": other})] == [State.PASS, State.FAIL]


def test_without_tokens_nothing_is_measured(measured):
    found = measured(CELL)
    mute = replace(found.baseline, answers=tuple(replace(answer, logprobs=()) for answer in found.baseline.answers))
    assert found.verdict(PrecisionGate(), None, mute) == "PASS"
    nothing = found.verdict(PrecisionGate(), None, replace(found.baseline, answers=()), answers=())
    assert nothing == "NOT MEASURED: no token was compared with float32"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("off", "state", "counts"), [(0.02, State.PASS, (1, 0)), (0.8, State.FAIL, (0, 1))])
def test_answers_of_fast_kernels_part_only_at_ties(measured, altered, place, off, state, counts):
    found = measured(CELL)
    name, ids = found.run.requests[place].name, found.run.answers[place].output_ids
    parted = altered(found.run, place, output_ids=(*ids[:7], ids[7] ^ 1, *ids[8:]))
    gate = LosslessGate(oracle=None, precision=PrecisionGate(tokens=shifted(name, (7,), off)))
    outcome = found.judge(gate, parted)
    assert (outcome.state, (outcome.numbers["ties"], outcome.numbers["divergent"])) == (state, counts)
    # Deterministic bf16 has no ties of this kind without logit rules: all its bits are equal.
    exact = replace(found.prepared, cell=found.prepared.cell._replace(numerics="bf16"))
    assert gate.judge(exact, parted, found.baseline).state is State.FAIL


def test_in_bf16_a_baseline_may_leave_transformers_at_a_tie(measured):
    found, known = measured(CELL), LosslessGate().oracle("llama-mini")
    name = found.run.requests[0].name
    texts = list(known.continuations)
    text = texts[int(name[1:])]
    texts[int(name[1:])] = (*text[:7], text[7] ^ 1, *text[8:])
    oracle = replace(known, continuations=tuple(texts))
    for off, state in ((0.24, State.PASS), (0.26, State.FAIL)):
        gate = LosslessGate(oracle=lambda target: oracle, precision=PrecisionGate(tokens=shifted(name, (7,), off)))
        assert found.judge(gate).state is state
