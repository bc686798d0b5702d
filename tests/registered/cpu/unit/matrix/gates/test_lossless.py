from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.lossless import LosslessGate, proves
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.oracles.logit_rules import ruled_tokens
from specmatrix.matrix.oracles.precision import PreciseToken

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
RULED = "none.mixed_lengths.rules"
TURNS = "eagle3.s3.k4.n8.v2.p16.session_retract.pair.stream.length"
SAMPLED = "eagle3.s3.k4.n8.v2.p16.pair.temperature.stop_string.abort_running"


@pytest.fixture(scope="session")
def gate(measured, oracle_of):
    prepared, _, baseline = measured(CELL)
    known = oracle_of(prepared, baseline)
    return LosslessGate(oracle=lambda target: known)


def changed(ids, index):
    return (*ids[:index], ids[index] ^ 1, *ids[index + 1 :])


def gap(answer, index, nats):
    """The answer with the given gap between its two best log-probabilities at `index`."""
    (best, value), (second, _) = answer.top_logprobs[index][:2]
    rows = list(answer.top_logprobs)
    rows[index] = ((best, value), (second, value - nats))
    return tuple(rows)


def test_equal_tokens_pass(measured, gate):
    outcome = gate.judge(*measured(CELL))
    assert outcome.state is State.PASS
    assert outcome.numbers["oracle_tokens"] == outcome.numbers["tokens"] > 20


def test_one_other_token_fails_and_is_named(measured, gate, altered):
    prepared, run, baseline = measured(CELL)
    ids = run.answers[1].output_ids
    outcome = gate.judge(prepared, altered(run, 1, output_ids=changed(ids, 4)), baseline)
    expected = f"{run.requests[1].name} at token 4: {ids[4] ^ 1} instead of {ids[4]}"
    assert outcome.state is State.FAIL and outcome.numbers["first_divergence"] == expected
    assert outcome.message == f"1 of 2 requests differ from plain decoding, first {expected}"
    assert outcome.blame == Blame(run.requests[1].name, 4) and not outcome.accept


def test_a_missing_last_token_fails(measured, gate, altered):
    prepared, run, baseline = measured(CELL)
    outcome = gate.judge(prepared, altered(run, 0, output_ids=run.answers[0].output_ids[:-1]), baseline)
    name, ids = run.requests[0].name, run.answers[0].output_ids
    place = f"{name} at token {len(ids) - 1}: end of output instead of {ids[-1]}"
    text = f"1 of 2 requests differ from plain decoding, first {place}"
    assert (outcome.state, outcome.message) == (State.FAIL, text)


@pytest.mark.parametrize(("nats", "state"), [(0.9e-3, State.PASS), (1.1e-3, State.FAIL)])
def test_a_greedy_tie_is_listed_and_not_red(measured, gate, altered, nats, state):
    prepared, run, baseline = measured(CELL)
    broken = altered(run, 0, output_ids=changed(run.answers[0].output_ids, 3))
    close = altered(baseline, 0, top_logprobs=gap(baseline.answers[0], 3, nats))
    outcome = replace(gate, precision=PrecisionGate(tokens=lambda *_: ())).judge(prepared, broken, close)
    assert outcome.state is state
    assert outcome.numbers["tied_at"] == (f"{run.requests[0].name}@3" if state is State.PASS else "")


def test_sampled_and_aborted_requests_are_compared_too(measured, gate, altered):
    prepared, run, baseline = measured(SAMPLED)
    assert run.answers[1].finish == "abort" and len(run.answers[1].output_ids) < len(baseline.answers[1].output_ids)
    assert gate.judge(prepared, run, baseline).state is State.PASS
    for index in (0, 1):
        broken = altered(run, index, output_ids=changed(run.answers[index].output_ids, 2))
        assert gate.judge(prepared, broken, baseline).state is State.FAIL


def test_a_baseline_that_leaves_the_oracle_fails(measured, gate):
    prepared, run, baseline = measured(CELL)
    index = int(run.requests[0].name[1:])
    tokens = list(gate.oracle("llama-mini").continuations)
    tokens[index] = changed(tokens[index], 2)
    outcome = LosslessGate(oracle=lambda target: replace(gate.oracle(target), continuations=tuple(tokens))).judge(
        prepared, run, baseline
    )
    assert outcome.state is State.FAIL
    assert outcome.message == f"the baseline of {run.requests[0].name} differs from the transformers oracle at token 2"
    assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    assert outcome.blame == Blame(
        run.requests[0].name, 2, got=baseline.answers[0].output_ids, expected=tuple(tokens[index])
    )
    place = str(outcome.numbers["first_divergence"])
    assert place.startswith(f"the baseline's {run.requests[0].name} at token 2: ") and " instead of " in place


@pytest.mark.parametrize(
    ("nats", "dtype", "state"),
    [(0.5e-4, "float32", State.PASS), (2e-4, "float32", State.FAIL), (2e-4, "bfloat16", State.PASS)],
)
def test_a_baseline_with_other_log_probabilities_fails(measured, gate, altered, nats, dtype, state):
    """Tokens do not show a window that is one token short; log-probabilities do."""
    prepared, run, baseline = measured(CELL)
    scores = baseline.answers[1].logprobs
    moved = altered(baseline, 1, logprobs=(*scores[:7], scores[7] - nats, *scores[8:]))
    outcome = gate.judge(prepared, run, replace(moved, resolved={**moved.resolved, "dtype": dtype}))
    assert outcome.state is state and outcome.numbers["oracle_nats"] == pytest.approx(nats)
    assert outcome.message == (
        f"a log-probability of the baseline differs from the oracle's by {nats:.2g} nats" if state is State.FAIL else ""
    )


def test_a_baseline_without_log_probabilities_proves_nothing(measured, gate, altered):
    prepared, run, baseline = measured(CELL)
    outcome = gate.judge(prepared, run, altered(baseline, 0, logprobs=()))
    assert outcome.state is State.NOT_MEASURED
    name = run.requests[0].name
    assert outcome.message == f"the baseline of {name} has no log-probabilities to compare with the oracle's"


def test_without_evidence_nothing_is_measured(measured, gate):
    prepared, run, baseline = measured(CELL)
    outcome = LosslessGate(oracle=lambda target: None).judge(prepared, run, baseline)
    text = "the target has no transformers oracle continuations, so the baseline itself is unverified"
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
    assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    empty = tuple(replace(answer, output_ids=(), logprobs=(), top_logprobs=()) for answer in run.answers)
    outcome = gate.judge(prepared, replace(run, answers=empty), replace(baseline, answers=empty))
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no token was generated")
    lost = gate.judge(prepared, run, replace(baseline, answers=baseline.answers[1:]))
    assert (lost.state, lost.message) == (
        State.NOT_MEASURED,
        f"the baseline has no answer for request {run.requests[0].name}",
    )
    empty = gate.judge(prepared, replace(run, requests=(), answers=()), baseline)
    assert (empty.state, empty.message) == (State.NOT_MEASURED, "the cell has no requests")


@pytest.mark.parametrize(("nats", "state"), [(1e-5, State.PASS), (1e-3, State.FAIL)])
def test_a_turns_log_probabilities_are_those_of_the_history_sent_again(measured, altered, nats, state):
    prepared, run, baseline = measured(TURNS)
    outcome = LosslessGate().judge(prepared, run, baseline)
    assert (outcome.state, outcome.numbers["score_nats"]) == (State.PASS, 0.0) and outcome.numbers["scored"] > 100
    index = next(i for i, a in enumerate(run.answers) if a.name.endswith(".turn2") and len(a.logprobs) > 2)
    scores = run.answers[index].logprobs
    moved = altered(run, index, logprobs=(*scores[:2], scores[2] - nats, *scores[3:]))
    outcome = LosslessGate().judge(prepared, moved, baseline)
    assert outcome.state is state
    if state is State.FAIL:
        name = run.answers[index].name
        assert outcome.message == f"a log-probability of {name} differs from the baseline's by 0.001 nats"


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
    prepared, run, baseline = measured(RULED if ruled else TURNS)
    pairs = enumerate(zip(run.requests, run.answers, strict=True))
    index = next(i for i, (request, answer) in pairs if request.ruled == ruled and len(answer.logprobs) > 2)
    scores = run.answers[index].logprobs
    moved = altered(run, index, logprobs=(*scores[:2], scores[2] - nats, *scores[3:]))
    half = {"dtype": "bfloat16", "topk": topk, "enable_deterministic_inference": deterministic}
    moved, plain = (replace(one, resolved={**one.resolved, **half}) for one in (moved, baseline))
    assert gate.judge(prepared, moved, plain).state is state


def test_a_baseline_under_logit_rules_is_what_the_processors_leave(measured):
    outcome = LosslessGate().judge(*measured(RULED))
    assert outcome.state is State.PASS and outcome.numbers["ruled_tokens"] == outcome.numbers["tokens"] > 200
    assert outcome.numbers["rule_nats"] < 1e-4 and "oracle_tokens" not in outcome.numbers


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, {"behind": 2e-3}, "the baseline of {} breaks its logit rules at token 3"),
        (0, {"behind": 0.5e-3}, ""),
        (1, {"behind": 2.0}, ""),
        (1, {"kept": False}, "the baseline of {} breaks its logit rules at token 3"),
        (
            0,
            {"logprob": -30.0},
            "a log-probability of the baseline differs from that under its logit rules by {:.2g} nats",
        ),
    ],
    ids=["another best", "a tie", "a draw", "a banned draw", "another log-probability"],
)
def test_each_broken_rule_is_named(measured, place, change, message):
    prepared, run, baseline = measured(RULED)
    name = run.requests[place].name

    def rules(target, request, prompt, output):
        found = list(ruled_tokens(target, request, prompt, output))
        if request.name == name:
            found[3] = found[3]._replace(**change)
        return found

    outcome = LosslessGate(rules=rules).judge(prepared, run, baseline)
    assert outcome.state is (State.FAIL if message else State.PASS)
    nats = outcome.numbers.get("rule_nats", 0.0)
    assert outcome.message == (message.format(name) if "{}" in message else message.format(nats))
    if "breaks" in message:
        assert outcome.blame == Blame(name, 3, got=baseline.answers[place].output_ids)


@pytest.mark.parametrize(("error", "state"), [(2.5e-4, State.PASS), (3.5e-4, State.FAIL)])
def test_log_probabilities_under_rules_have_a_bound_of_their_own(measured, error, state):
    def rules(target, request, prompt, output):
        found = ruled_tokens(target, request, prompt, output)
        return [token._replace(logprob=token.logprob + error) for token in found]

    outcome = LosslessGate(rules=rules).judge(*measured(RULED))
    assert outcome.state is state and outcome.numbers["rule_nats"] == pytest.approx(error, abs=4e-5)


@pytest.mark.parametrize("numerics", ["fast", "bf16"])
def test_what_fast_kernels_draw_under_rules_is_not_banned(measured, numerics):
    """It need not be what the baseline draws; what trees in bf16 draw must be."""
    prepared, run, baseline = measured("eagle3.s3.k4.n8.v2.mixed_lengths.rules.stops")
    cell = replace(prepared, cell=prepared.cell._replace(numerics=numerics))
    half = {"dtype": "bfloat16", "enable_deterministic_inference": True}
    run, baseline = (replace(one, resolved={**one.resolved, **half}) for one in (run, baseline))
    drawn = next(place for place, request in enumerate(run.requests) if request.ruled and request.temperature)
    request, answer = run.requests[drawn], run.answers[drawn]

    def rules(target, asked, prompt, output):
        found = list(ruled_tokens(target, asked, prompt, output))
        if asked.name == request.name and output[2] == answer.output_ids[2] ^ 1:
            found[2] = found[2]._replace(kept=False)
        return found

    gate = LosslessGate(rules=rules)
    assert gate.judge(cell, run, baseline).state is State.PASS
    ids = answer.output_ids
    wrong = [replace(a, output_ids=(*ids[:2], ids[2] ^ 1, *ids[3:])) if a is answer else a for a in run.answers]
    outcome = gate.judge(cell, replace(run, answers=tuple(wrong)), baseline)
    differs = f"1 of {len(run.answers)} requests differ from plain decoding, first {request.name} at token 2: "
    text = f"{request.name} breaks its logit rules at token 2" if numerics == "fast" else differs
    assert outcome.state is State.FAIL and outcome.message.startswith(text)
    assert outcome.blame == Blame(request.name, 2)


@pytest.mark.parametrize(("topk", "off", "state"), [(4, 0.2, State.PASS), (4, 0.3, State.FAIL), (1, 0.2, State.FAIL)])
def test_greedy_trees_in_bf16_part_under_logit_rules_at_ties_only(measured, altered, topk, off, state):
    prepared, run, baseline = measured("eagle3.s3.k4.n8.v2.mixed_lengths.rules.stops")
    cell = replace(prepared, cell=prepared.cell._replace(numerics="bf16"))
    half = {"dtype": "bfloat16", "enable_deterministic_inference": True, "topk": topk}
    run, baseline = (replace(one, resolved={**one.resolved, **half}) for one in (run, baseline))
    place = next(i for i, request in enumerate(run.requests) if request.ruled and not request.temperature)

    def tokens(target, request, seed, prompt, output):
        return [PreciseToken(off, -1.0)] * len(output)

    gate = LosslessGate(precision=PrecisionGate(tokens=tokens))
    parted = altered(run, place, output_ids=changed(run.answers[place].output_ids, 3))
    assert gate.judge(cell, parted, baseline).state is state


def test_rules_of_a_subjects_own_are_judged_by_its_baseline_alone(measured):
    prepared, run, baseline = measured(RULED)
    own = tuple(replace(request, own='{"no_repeat_ngram_size": 3}') for request in run.requests[:1])
    run = replace(run, requests=(*own, *run.requests[1:]))
    outcome = LosslessGate().judge(prepared, run, baseline)
    assert outcome.state is State.PASS
    assert outcome.numbers["ruled_tokens"] == outcome.numbers["tokens"] - len(run.answers[0].output_ids)


def test_greedy_requests_with_rules_are_compared_where_sampled_ones_are_not():
    some = LosslessGate(sampled=False)
    assert (
        some.applies(Cell(sampling="rules")) and some.applies(Cell()) and not some.applies(Cell(sampling="topk_topp"))
    )


@pytest.mark.parametrize(
    ("place", "field", "change"),
    [
        (0, "prompt_logprobs", lambda values: (*values[:5], values[5] - 2e-3, *values[6:])),
        (-1, "prompt_logprobs", lambda values: (*values[:-1], values[-1] - 2e-3)),
        (0, "prompt_top_logprobs", lambda tops: (*tops[:-1], (tops[-1][0], (tops[-1][1][0], tops[-1][1][1] - 2e-3)))),
        (0, "prompt_top_logprobs", lambda tops: (*tops[:-1], (tops[-1][0], tops[-1][0]))),
    ],
)
def test_each_wrong_log_probability_of_a_prompt_is_seen(measured, altered, place, field, change):
    prepared, run, baseline = measured(RULED)
    outcome = LosslessGate().judge(prepared, run, baseline)
    assert outcome.numbers["scored_prompts"] == 3 and 0 < outcome.numbers["prompt_nats"] < 1e-4
    just = {**LosslessGate().thresholds, "oracle_nats": outcome.numbers["prompt_nats"]}
    assert LosslessGate(thresholds=just).judge(prepared, run, baseline).state is State.PASS
    wrong = altered(run, place, **{field: change(getattr(run.answers[place], field))})
    outcome = LosslessGate().judge(prepared, wrong, baseline)
    assert outcome.state is State.FAIL
    nats = outcome.numbers["prompt_nats"]
    assert outcome.message == f"a log-probability of a prompt's token differs from the oracle's by {nats:.2g} nats"
    assert nats > 1e-3
    holes = altered(wrong, place, **{field: (None, *[() if "top" in field else None] * 99)})
    assert LosslessGate().judge(prepared, holes, baseline).state is State.PASS, "`finish` sees what is missing"


@pytest.mark.parametrize(("place", "state"), [(3, State.PASS), (9, State.FAIL)])
def test_an_answer_is_followed_past_its_tie(measured, gate, altered, place, state):
    """A token in front of the tie is the baseline's concern, one behind it is float32's."""
    prepared, run, baseline = measured(CELL)
    name, ids = run.requests[0].name, run.answers[0].output_ids

    def tokens(target, request, seed, prompt, output):
        return [PreciseToken(0.2 if index == place else 0.0, -1.0) for index in range(len(output))]

    broken = altered(run, 0, output_ids=changed(changed(ids, 3), 9))
    close = altered(baseline, 0, top_logprobs=gap(baseline.answers[0], 3, 0.5e-3))
    outcome = replace(gate, precision=PrecisionGate(tokens=tokens)).judge(prepared, broken, close)
    assert (outcome.state, outcome.numbers["ties"]) == (state, 1)
    assert outcome.numbers["past_ties"] == len(ids) - 4
    if state is State.FAIL:
        assert outcome.blame == Blame(name, place) and outcome.numbers["divergent"] == 1
        assert outcome.message == (
            f"1 of 2 requests leave float32's text behind a tie, first {name} at token 9: {ids[9] ^ 1}"
        )


def test_equality_is_evidence_where_drafts_were_accepted_and_rejected(measured, altered, gate):
    prepared, run, baseline = measured(CELL)
    assert gate.judge(prepared, run, baseline).numbers["proving"] == sum(len(a.output_ids) for a in run.answers)
    answer = run.answers[0]
    for lengths in ((4,) * 9, (1,) * 9):
        assert not proves(prepared.cell, run, replace(answer, accept_lengths=lengths))
    silent = replace(answer, accept_lengths=())
    totals = {"spec.drafted": 9, "spec.accepted": 9}
    assert not proves(prepared.cell, replace(run, evidence=totals), silent)
    assert proves(prepared.cell, replace(run, evidence=totals | {"spec.accepted": 8}), silent)
    assert proves(Cell(), run, silent)
    one = replace(run, answers=(replace(answer, accept_lengths=(1,) * 9), *run.answers[1:]))
    assert gate.judge(prepared, one, baseline).numbers["proving"] == len(run.answers[1].output_ids)
