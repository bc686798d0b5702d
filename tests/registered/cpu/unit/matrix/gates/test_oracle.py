"""The gate that compares plain decoding with transformers, along the oracle's text."""

from dataclasses import replace

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.oracles.margins import margins
from specmatrix.matrix.oracles.transformers import oracle_of

CELL = "eagle3.s3.k4.n8.v2.p16.pair"


def changed(ids, places):
    return tuple(token ^ (at in places) for at, token in enumerate(ids))


def test_plain_decoding_is_transformers(measured):
    prepared, run, baseline = measured(CELL)
    outcome = OracleGate().judge(prepared, run, baseline)
    tokens = sum(len(answer.output_ids) for answer in baseline.answers)
    assert outcome.state is State.PASS
    assert outcome.numbers == {"oracle_tokens": tokens, "ties": 0, "tied_at": "", "wrong": 0}


def test_a_token_that_is_not_the_oracles_is_named(measured, altered):
    prepared, run, baseline = measured(CELL)
    wrong = baseline
    for place, answer in enumerate(baseline.answers):
        wrong = altered(wrong, place, output_ids=changed(answer.output_ids, (4 + place, 9)))
    outcome = OracleGate().judge(prepared, run, wrong)
    name, ids = wrong.answers[0].name, baseline.answers[0].output_ids
    assert (outcome.state, outcome.message) == (
        State.FAIL,
        f"plain decoding of 2 requests differs from the transformers oracle, first {name} at token 4: {ids[4] ^ 1} "
        f"instead of {ids[4]}",
    )
    expected = oracle_of("llama-mini").continuation(baseline.requests[0])
    assert outcome.blame == Blame(name, 4, got=wrong.answers[0].output_ids, expected=expected)
    assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    assert outcome.numbers == {"oracle_tokens": 4 + 5, "ties": 0, "tied_at": "", "wrong": 2}


def test_margins_go_on_behind_the_end_of_a_text(measured):
    _, run, _ = measured(CELL)
    ends = len(run.answers[0].output_ids)
    found = margins("llama-mini", replace(run.requests[0], max_new_tokens=ends + 9))
    assert run.answers[0].finish == "stop" and len(found) == ends + 9 and min(found) >= 0


def test_behind_a_tie_the_resumed_run_is_compared(measured, altered):
    prepared, run, baseline = measured(CELL)
    name, ids = baseline.answers[0].name, baseline.answers[0].output_ids
    gate = OracleGate(margins=lambda target, request: [1.0] * 4 + [0.0] + [1.0] * 400)
    tied = altered(baseline, 0, output_ids=changed(ids, (4,)))
    outcome = gate.judge(prepared, run, tied)
    assert (outcome.state, outcome.numbers["ties"], outcome.numbers["tied_at"]) == (State.PASS, 1, f"{name}@4")
    assert gate.next_tie("llama-mini", baseline.requests[0], 0, tied.answers[0].output_ids) == 4
    assert gate.next_tie("llama-mini", baseline.requests[0], 0, ids[:4]) is None, "it ends before the tie"
    ties = [gate.is_tie("llama-mini", baseline.requests[0], index) for index in (3, 4, 404, 405)]
    assert ties == [False, True, False, False], "there are 405 margins"
    for places, state in (((), State.PASS), ((2,), State.FAIL)):
        rest = changed(ids[5:], places)
        outcome = gate.judge(prepared, run, replace(tied, resumed={name: ((5, rest),)}))
        assert outcome.state is state
    text = (
        f"of 1 requests differs from the transformers oracle, first {name} at token 7: {ids[7] ^ 1} instead of {ids[7]}"
    )
    assert outcome.message == f"plain decoding {text}"


def test_without_an_oracle_or_its_prompts_nothing_is_measured(measured):
    prepared, run, baseline = measured(CELL)
    outcome = OracleGate(oracle=lambda target: None).judge(prepared, run, baseline)
    assert (outcome.state, outcome.message) == (
        State.NOT_MEASURED,
        "the target has no transformers oracle continuations, so the baseline itself is unverified",
    )
    drawn = replace(baseline, requests=tuple(replace(each, temperature=0.8) for each in baseline.requests))
    outcome = OracleGate().judge(prepared, run, drawn)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no token was compared with the oracle")
    assert outcome.numbers == {"oracle_tokens": 0, "ties": 0, "tied_at": "", "wrong": 0}
    samplings = ("greedy", "mixed", "temperature", "rules")
    assert [OracleGate().applies(Cell(sampling=name)) for name in samplings] == [True, True, False, False]
