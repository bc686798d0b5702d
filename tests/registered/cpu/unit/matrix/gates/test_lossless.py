from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.lossless import LosslessGate, logprob_gaps, proves
from specmatrix.matrix.gates.pairing import AnswerPair
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.oracles.joint_law import prompt_scores, rounding
from specmatrix.matrix.oracles.logit_rules import network, ruled_tokens
from specmatrix.matrix.oracles.precision import PreciseToken
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.request import RequestSpec

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
RULED = "none.mixed_lengths.rules"
RULED_TREE = "eagle3.s3.k4.n8.v2.mixed_lengths.rules.stops"
TURNS = "eagle3.s3.k4.n8.v2.p16.session_retract.pair.stream.length"
SAMPLED = "eagle3.s3.k4.n8.v2.p16.pair.temperature.stop_string.abort_running"


@pytest.fixture(scope="session")
def gate(measured, oracle_of):
    prepared, _, baseline = measured(CELL)
    known = oracle_of(prepared, baseline)
    return LosslessGate(oracle=lambda target: known)


def changed(ids, index):
    return (*ids[:index], ids[index] ^ 1, *ids[index + 1 :])


def lowered(scores, index, nats):
    """Log-probabilities of which one is lower."""
    return (*scores[:index], scores[index] - nats, *scores[index + 1 :])


def halved(found, numerics="", **resolved: object):
    """A measured cell that ran in bf16, or with other numerics of the cell."""
    half = {"dtype": "bfloat16", "enable_deterministic_inference": True, **resolved}
    runs = (replace(one, resolved={**one.resolved, **half}) for one in found[1:])
    cell = found.prepared.cell._replace(numerics=numerics or found.prepared.cell.numerics)
    return type(found)(replace(found.prepared, cell=cell), *runs)


def gap(answer, index, nats):
    """The answer with the given gap between its two best log-probabilities at `index`."""
    (best, value), (second, _) = answer.top_logprobs[index][:2]
    return (*answer.top_logprobs[:index], ((best, value), (second, value - nats)), *answer.top_logprobs[index + 1 :])


def test_equal_tokens_pass(measured, gate):
    outcome = gate.judge(*measured(CELL))
    assert outcome.state is State.PASS
    assert outcome.numbers["oracle_tokens"] == outcome.numbers["tokens"] > 20


def test_one_other_token_or_a_missing_one_fails_and_is_named(measured, gate, altered):
    found = measured(CELL)
    for place, (request, answer) in enumerate(zip(found.run.requests, found.run.answers, strict=True)):
        ids, last = answer.output_ids, len(answer.output_ids) - 1
        for at, other, got in ((4, changed(ids, 4), ids[4] ^ 1), (last, ids[:-1], "end of output")):
            outcome = found.judge(gate, altered(found.run, place, output_ids=other))
            expected = f"{request.name} at token {at}: {got} instead of {ids[at]}"
            assert outcome.state is State.FAIL and outcome.numbers["first_divergence"] == expected
            ends = accumulate(answer.accept_lengths, initial=1)
            where = f", in verify round {next(n for n, end in enumerate(ends) if at < end)}"
            assert outcome.message == f"1 of 2 requests differ from plain decoding, first {expected}{where}"
            assert outcome.blame == Blame(request.name, at) and not outcome.accept


@pytest.mark.parametrize(("nats", "state"), [(0.9e-3, State.PASS), (1.1e-3, State.FAIL)])
def test_a_greedy_tie_is_listed_and_not_red(measured, gate, altered, nats, state):
    found = measured(CELL)
    broken = altered(found.run, 0, output_ids=changed(found.run.answers[0].output_ids, 3))
    close = altered(found.baseline, 0, top_logprobs=gap(found.baseline.answers[0], 3, nats))
    outcome = found.judge(replace(gate, precision=PrecisionGate(tokens=lambda *_: ())), broken, close)
    assert outcome.state is state
    assert outcome.numbers["tied_at"] == (f"{broken.requests[0].name}@3" if state is State.PASS else "")


def test_sampled_and_aborted_requests_are_compared_too(measured, gate, altered):
    found, run = measured(SAMPLED), measured(SAMPLED).run
    assert run.answers[1].finish == "abort"
    assert len(run.answers[1].output_ids) < len(found.baseline.answers[1].output_ids)
    assert found.judge(gate).state is State.PASS
    for index, answer in enumerate(run.answers):
        broken = altered(run, index, output_ids=changed(answer.output_ids, 2))
        assert found.judge(gate, broken).state is State.FAIL


def test_a_baseline_that_leaves_the_oracle_fails(measured, gate):
    found, name = measured(CELL), measured(CELL).run.requests[0].name
    tokens = list(gate.oracle("llama-mini").continuations)
    index = int(name[1:])
    tokens[index] = changed(tokens[index], 2)
    other = replace(gate.oracle("llama-mini"), continuations=tuple(tokens))
    outcome = found.judge(LosslessGate(oracle=lambda target: other))
    assert outcome.state is State.FAIL
    assert outcome.message == f"the baseline of {name} differs from the transformers oracle at token 2"
    assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    assert outcome.blame == Blame(name, 2, got=found.baseline.answers[0].output_ids, expected=tuple(tokens[index]))
    place = str(outcome.numbers["first_divergence"])
    assert place.startswith(f"the baseline's {name} at token 2: ") and " instead of " in place


@pytest.mark.parametrize(("nats", "dtype", "red"), [(5e-5, "float32", 0), (2e-4, "float32", 1), (2e-4, "bfloat16", 0)])
def test_a_baseline_with_other_log_probabilities_fails(measured, gate, altered, nats, dtype, red):
    """Tokens do not show a window that is one token short; log-probabilities do."""
    found = measured(CELL)
    moved = altered(found.baseline, 1, logprobs=lowered(found.baseline.answers[1].logprobs, 7, nats))
    moved = replace(moved, resolved={**moved.resolved, "dtype": dtype})
    text = (
        f"FAIL: a log-probability of the baseline of {found.run.answers[1].name} differs from the oracle's by 0.0002 "
    )
    text += "nats, at token 7"
    assert found.verdict(gate, None, moved) == (text if red else "PASS")
    assert found.judge(gate, None, moved).numbers["oracle_nats"] == pytest.approx(nats)


def test_without_evidence_nothing_is_measured(measured, gate, altered):
    found, name = measured(CELL), measured(CELL).run.requests[0].name
    outcome = found.judge(LosslessGate(oracle=lambda target: None))
    assert (outcome.state, outcome.accept) == (State.NOT_MEASURED, "python -m specmatrix.matrix.zoo.oracle llama-mini")
    assert "the baseline itself is unverified" in outcome.message
    empty = tuple(replace(answer, output_ids=(), logprobs=(), top_logprobs=()) for answer in found.run.answers)
    for run, baseline, text in (
        (None, altered(found.baseline, 0, logprobs=()), f"the baseline of {name} has no log-probabilities"),
        (replace(found.run, answers=empty), replace(found.baseline, answers=empty), "no token was generated"),
        (None, replace(found.baseline, answers=found.baseline.answers[1:]), "the baseline has no answer for request q"),
        (replace(found.run, requests=(), answers=()), None, "the cell has no requests"),
    ):
        assert found.verdict(gate, run, baseline).startswith(f"NOT MEASURED: {text}")


@pytest.mark.parametrize(("nats", "state"), [(1e-5, State.PASS), (1e-3, State.FAIL)])
def test_a_turns_log_probabilities_are_those_of_the_history_sent_again(measured, altered, nats, state):
    found, run, gate = measured(TURNS), measured(TURNS).run, LosslessGate()
    outcome = found.judge(gate)
    assert (outcome.state, outcome.numbers["score_nats"]) == (State.PASS, 0.0) and outcome.numbers["scored"] > 100
    index = next(i for i, a in enumerate(run.answers) if a.name.endswith(".turn2") and len(a.logprobs) > 2)
    outcome = found.judge(gate, altered(run, index, logprobs=lowered(run.answers[index].logprobs, 2, nats)))
    assert outcome.state is state
    text = f"a log-probability of {run.answers[index].name} differs from the baseline's by 0.001 nats, at token 2, in "
    assert (
        outcome.message.startswith(f"{text}verify round ") and outcome.blame.token == 2
        if state is State.FAIL
        else (not outcome.message)
    )


@pytest.mark.parametrize(
    ("ruled", "nats", "topk", "deterministic", "state"),
    [
        (False, 0.15, 4, True, State.PASS),
        (False, 0.17, 4, True, State.FAIL),
        (True, 0.31, 4, True, State.PASS),
        (True, 0.33, 4, True, State.FAIL),
        (False, 0.1, 1, True, State.FAIL),
        (True, 0.1, 1, True, State.FAIL),
        (False, 0.15, 1, False, State.PASS),
    ],
)
def test_in_bf16_only_chains_of_a_deterministic_engine_have_the_log_probabilities_of_plain_decoding(
    measured, gate, altered, ruled, nats, topk, deterministic, state
):
    found = halved(measured(RULED if ruled else TURNS), topk=topk, enable_deterministic_inference=deterministic)
    pairs = enumerate(zip(found.run.requests, found.run.answers, strict=True))
    index = next(i for i, (request, answer) in pairs if request.ruled == ruled and len(answer.logprobs) > 2)
    moved = altered(found.run, index, logprobs=lowered(found.run.answers[index].logprobs, 2, nats))
    assert found.judge(gate, moved).state is state


@pytest.mark.parametrize(("half", "near", "state"), [(0, 1, State.FAIL), (1, 1, State.PASS), (1, 0, State.FAIL)])
def test_of_another_engine_in_half_precision_precision_says_what_is_a_tie(measured, altered, half, near, state):
    found = halved(measured(CELL), enable_deterministic_inference=False) if half else measured(CELL)
    ids = found.run.answers[0].output_ids
    moved = altered(found.run, 0, output_ids=(*ids[:4], ids[4] ^ 1, *ids[5:]))
    own = SimpleNamespace(is_tie=lambda *_: bool(near))
    gate = LosslessGate(oracle=None, is_oracle_tie=lambda *_: False, precision=own)
    assert found.judge(gate, moved).state is state


def test_a_baseline_under_logit_rules_is_what_the_processors_leave(measured):
    outcome = LosslessGate().judge(*measured(RULED))
    assert outcome.state is State.PASS and outcome.numbers["ruled_tokens"] == outcome.numbers["tokens"] > 200
    assert outcome.numbers["rule_nats"] < 1e-4 and "oracle_tokens" not in outcome.numbers


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, {"behind": 2e-3}, "the baseline of {} breaks its logit rules"),
        (0, {"behind": 0.5e-3}, ""),
        (1, {"behind": 2.0}, ""),
        (1, {"kept": False}, "the baseline of {} breaks its logit rules"),
        (
            0,
            {"logprob": -30.0},
            "a log-probability of the baseline of {} differs from that under its logit rules by 30 nats,",
        ),
        (1, {"begin": 1.0, "end": 1.0}, "the baseline of {} does not draw what its seed and rules do,"),
    ],
    ids=["another best", "a tie", "a draw", "a banned draw", "another log-probability", "another draw"],
)
def test_each_broken_rule_is_named(measured, place, change, message):
    found, name = measured(RULED), measured(RULED).run.requests[place].name

    def rules(target, request, prompt, output):
        tokens = list(ruled_tokens(target, request, prompt, output))
        if request.name == name:
            tokens[3] = tokens[3]._replace(**change)
        return tokens

    outcome = found.judge(LosslessGate(rules=rules))
    assert (outcome.state, bool(outcome.message)) == ((State.FAIL, True) if message else (State.PASS, False))
    assert outcome.message.startswith(message and message.format(name) + " at token 3, in verify round 3 under ")
    if message.startswith("the baseline"):
        assert outcome.blame == Blame(name, 3, got=found.baseline.answers[place].output_ids)


@pytest.mark.parametrize(("error", "state"), [(2.5e-4, State.PASS), (3.5e-4, State.FAIL)])
def test_log_probabilities_under_rules_have_a_bound_of_their_own(measured, error, state):
    def rules(target, request, prompt, output):
        found = ruled_tokens(target, request, prompt, output)
        return [token._replace(logprob=token.logprob + error) for token in found]

    outcome = LosslessGate(rules=rules).judge(*measured(RULED))
    assert outcome.state is state and outcome.numbers["rule_nats"] == pytest.approx(error, abs=4e-5)


@pytest.mark.parametrize(
    ("numerics", "text"),
    [
        ("fast", "{1} breaks its logit rules at"),
        ("bf16", "1 of {0} requests differ from plain decoding, first {1} at"),
        ("float32", "{1} breaks its logit rules at"),
    ],
)
def test_what_is_drawn_under_rules_is_not_banned(measured, altered, numerics, text):
    """With fast kernels, and by another engine, it need not be what the baseline draws; what trees in bf16 draw must
    be."""
    found = halved(measured(RULED_TREE), numerics)
    run = found.run
    drawn = next(place for place, request in enumerate(run.requests) if request.ruled and request.temperature)
    request, answer = run.requests[drawn], run.answers[drawn]

    def rules(target, asked, prompt, output):
        tokens = list(ruled_tokens(target, asked, prompt, output))
        if asked.name == request.name and output[2] == answer.output_ids[2] ^ 1:
            tokens[2] = tokens[2]._replace(kept=False)
        return tokens

    gate = LosslessGate(rules=rules, sampled=numerics != "float32")
    assert found.judge(gate).state is State.PASS
    outcome = found.judge(gate, altered(run, drawn, output_ids=changed(answer.output_ids, 2)))
    assert outcome.state is State.FAIL and outcome.blame == Blame(request.name, 2)
    assert outcome.message.startswith(text.format(len(run.answers), request.name) + " token 2")


@pytest.mark.parametrize(("topk", "off", "state"), [(4, 0.2, State.PASS), (4, 0.3, State.FAIL), (1, 0.2, State.FAIL)])
def test_greedy_trees_in_bf16_part_under_logit_rules_at_ties_only(measured, altered, topk, off, state):
    found = halved(measured(RULED_TREE), "bf16", topk=topk)
    place = next(i for i, request in enumerate(found.run.requests) if request.ruled and not request.temperature)

    def tokens(target, request, seed, prompt, output):
        return [PreciseToken(off, -1.0)] * len(output)

    parted = altered(found.run, place, output_ids=changed(found.run.answers[place].output_ids, 3))
    assert found.judge(LosslessGate(precision=PrecisionGate(tokens=tokens)), parted).state is state


def test_rules_of_a_subjects_own_are_judged_by_its_baseline_alone(measured):
    found = measured(RULED)
    own = replace(found.run.requests[0], own='{"no_repeat_ngram_size": 3}')
    outcome = found.judge(LosslessGate(), requests=(own, *found.run.requests[1:]))
    assert outcome.state is State.PASS
    assert outcome.numbers["ruled_tokens"] == outcome.numbers["tokens"] - len(found.run.answers[0].output_ids)


def test_greedy_requests_with_rules_are_compared_where_sampled_ones_are_not():
    applies = [LosslessGate(sampled=False).applies(Cell(sampling=name)) for name in ("rules", "greedy", "topk_topp")]
    assert applies == [True, True, False]


@pytest.mark.parametrize(
    ("place", "field", "change"),
    [
        (0, "prompt_logprobs", lambda values: lowered(values, 5, 2e-3)),
        (-1, "prompt_logprobs", lambda values: (*values[:-1], values[-1] - 2e-3)),
        (0, "prompt_top_logprobs", lambda tops: (*tops[:-1], (tops[-1][0], (tops[-1][1][0], tops[-1][1][1] - 2e-3)))),
        (0, "prompt_top_logprobs", lambda tops: (*tops[:-1], (tops[-1][0], tops[-1][0]))),
    ],
)
def test_each_wrong_log_probability_of_a_prompt_is_seen(measured, altered, place, field, change):
    found, run, gate = measured(RULED), measured(RULED).run, LosslessGate()
    numbers = found.judge(gate).numbers
    assert numbers["scored_prompts"] == 3 and 0 < numbers["prompt_nats"] < 1e-4
    just = {**gate.thresholds, "oracle_nats": numbers["prompt_nats"], "prompt_largest": 0}
    assert found.judge(LosslessGate(thresholds=just)).state is State.PASS
    rounded = LosslessGate(thresholds=gate.thresholds | {"prompt_spread": 0.01, "prompt_numbers": 1})
    assert "nats in root mean square, where float32 rounds by" in found.verdict(rounded)
    wrong = altered(run, place, **{field: change(getattr(run.answers[place], field))})
    nats = found.judge(gate, wrong).numbers["prompt_nats"]
    name = run.answers[place].name
    at = 5 if place == 0 and field == "prompt_logprobs" else len(run.answers[place].prompt_ids) - 1
    text = f"FAIL: a log-probability of the prompt of {name} differs from the oracle's by {nats:.2g} nats"
    assert nats > 1e-3 and found.verdict(gate, wrong) == f"{text}, at token {at}"
    holes = altered(wrong, place, **{field: (None, *[() if "top" in field else None] * 99)})
    assert found.judge(gate, holes).state is State.PASS, "`finish` sees what is missing"


@pytest.mark.parametrize(("place", "state"), [(3, State.PASS), (9, State.FAIL)])
def test_an_answer_is_followed_past_its_tie(measured, gate, altered, place, state):
    """A token in front of the tie is the baseline's concern, one behind it is float32's."""
    found = measured(CELL)
    name, ids = found.run.requests[0].name, found.run.answers[0].output_ids

    def tokens(target, request, seed, prompt, output):
        return [PreciseToken(0.2 if index == place else 0.0, -1.0) for index in range(len(output))]

    broken = altered(found.run, 0, output_ids=changed(changed(ids, 3), 9))
    close = altered(found.baseline, 0, top_logprobs=gap(found.baseline.answers[0], 3, 0.5e-3))
    outcome = found.judge(replace(gate, precision=PrecisionGate(tokens=tokens)), broken, close)
    assert (outcome.state, outcome.numbers["ties"], outcome.numbers["past_ties"]) == (state, 1, len(ids) - 4)
    if state is State.FAIL:
        assert outcome.blame == Blame(name, place) and outcome.numbers["divergent"] == 1
        text = f"1 of 2 requests leave float32's text behind a tie, first {name} at token 9: {ids[9] ^ 1}"
        assert outcome.message == text


@pytest.mark.parametrize(("off", "state"), [(0.5e-3, State.PASS), (2e-3, State.FAIL)])
def test_where_no_text_is_stored_the_baseline_is_what_the_network_and_the_seed_choose(measured, gate, off, state):
    found, asked = measured(CELL), {}

    def far(run):
        same = ((replace(one, name="f0"), *ones[1:]) for ones in (run.requests, run.answers) for one in ones[:1])
        return replace(run, **dict(zip(("requests", "answers"), same, strict=True)))

    def tokens(target, request, seed, prompt, output):
        asked[request.name] = seed
        return [PreciseToken(off if index == 4 else 0.0, -1.0) for index in range(len(output))]

    outcome = found.judge(replace(gate, precision=PrecisionGate(tokens=tokens)), far(found.run), far(found.baseline))
    prompt = len(found.run.answers[0].prompt_ids)
    text = f"the baseline of f0 differs from the network along its own text at token 4, position {prompt + 4}"
    assert outcome.state is state and outcome.message.startswith(text * (state is State.FAIL))
    assert asked == {"f0": found.run.requests[0].seed}


def test_equality_is_evidence_where_drafts_were_accepted_and_rejected(measured, altered, gate):
    found = measured(CELL)
    cell, run, answer = found.prepared.cell, found.run, found.run.answers[0]
    assert found.judge(gate).numbers["proving"] == sum(len(a.output_ids) for a in run.answers)
    for lengths in ((4,) * 9, (1,) * 9):
        assert not proves(cell, run, replace(answer, accept_lengths=lengths))
    silent = replace(answer, accept_lengths=())
    totals = {"spec.drafted": 9, "spec.accepted": 9}
    assert not proves(cell, replace(run, evidence=totals), silent)
    assert proves(cell, replace(run, evidence=totals | {"spec.accepted": 8}), silent)
    assert proves(Cell(), run, silent)
    one = altered(run, 0, accept_lengths=(1,) * 9)
    assert found.judge(gate, one).numbers["proving"] == len(run.answers[1].output_ids)


ASK = RequestSpec("q0", "Why?", 3)
TOP = (((5, -0.1), (6, -0.5)), ((6, -0.2), (5, -0.3)), ((7, -0.4), (8, -0.9)))


def answer(ids=(5, 6, 7), logprobs=(-0.1, -0.2, -0.4), top=TOP):
    return Answer("q0", (1,), ids, "", "length", None, 0, (), logprobs=logprobs, top_logprobs=top)


def measure(mine, theirs=None):
    number, gaps = logprob_gaps(AnswerPair(ASK, mine, answer() if theirs is None else theirs))
    return number, max((one.nats for one in gaps), default=0.0)


def test_equal_ones_are_not_apart_and_those_that_one_side_lacks_are_not_counted():
    assert measure(answer()) == (3, 0.0)
    assert measure(answer(logprobs=(), top=())) == (0, 0.0)
    assert measure(answer(top=()), answer(logprobs=(-0.1,), top=())) == (1, 0.0)
    assert measure(answer(top=((), *TOP[1:]))) == measure(answer(), answer(top=((), *TOP[1:]))) == (3, 0.0)
    # A baseline shows two alternatives where one was asked.
    assert measure(answer(top=tuple(column[:1] for column in TOP))) == (3, 0.0)


def test_the_largest_difference_counts_of_a_token_or_an_alternative():
    assert measure(answer(logprobs=(-0.1, -0.25, -0.4)))[1] == pytest.approx(0.05)
    assert measure(answer(top=(TOP[0], TOP[1], ((7, -0.4), (8, -1.0)))))[1] == pytest.approx(0.1)


def test_an_alternative_that_is_none_of_the_baselines_is_held_to_its_last_one():
    tied = answer(top=(TOP[0], TOP[1], ((7, -0.4), (9, -0.9))))
    other = answer(top=(TOP[0], TOP[1], ((7, -0.4), (9, -0.5))))
    assert measure(tied)[1] == 0.0 and measure(other)[1] == pytest.approx(0.4)


def test_nothing_is_compared_after_the_first_different_token():
    assert measure(answer(ids=(5, 9, 7), logprobs=(-0.1, -7.0, -8.0))) == (1, 0.0)
    assert measure(answer(ids=(5,), logprobs=(-0.1,), top=TOP[:1])) == (1, 0.0)


def test_several_ranks_may_differ_by_what_float32_rounds_that_very_number_by(measured, altered):
    found = measured(TURNS)
    place, answer = next((at, one) for at, one in enumerate(found.run.answers) if len(one.logprobs) > 4)
    request = next(one for one in found.run.requests if one.name == answer.name)
    texts, target = (answer.prompt_ids, answer.output_ids), found.prepared.cell.target
    laws = [rounding(target, request, *texts, at) for at in range(len(answer.output_ids))]
    own = [float(law[token]) for law, token in zip(laws, answer.output_ids, strict=True)]
    most, least = own.index(max(own)), own.index(min(own))
    assert 4 * own[most] > 8 * own[least] and laws[least].max() > 8 * own[least], "the likeliest token's is the least"
    gate = LosslessGate(oracle=None, thresholds=LosslessGate().thresholds | {"score_nats": 1e-7})
    for ranks, at, state in (("2", most, State.PASS), ("1", most, State.FAIL), ("2", least, State.FAIL)):
        prepared = replace(found.prepared, cell=found.prepared.cell._replace(tp=ranks))
        run = altered(found.run, place, logprobs=lowered(answer.logprobs, at, 4 * own[most]))
        assert gate.judge(prepared, run, found.baseline).state is state, (ranks, at, own[most], own[least])
    usual = replace(found.prepared, cell=found.prepared.cell._replace(tp="2"))
    for at in range(len(answer.output_ids)):
        run = altered(found.run, place, logprobs=lowered(answer.logprobs, at, 2e-4))
        assert LosslessGate().judge(usual, run, found.baseline).state is State.FAIL
    with torch.inference_mode():
        exact, _ = prompt_scores(target, sum(texts, ()))
        rounded = network(target)(torch.tensor([sum(texts, ())]))[0][0].log_softmax(-1)
    shown = slice(len(answer.prompt_ids) - 1, -1)
    off = float((rounded - exact)[shown].square().mean().sqrt())
    assert 0.5 < off / float(torch.stack(laws).square().mean().sqrt()) < 2
