"""The gate that compares plain decoding with transformers, along the oracle's text."""

import json
from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.oracles import precision
from specmatrix.matrix.oracles.precision import margin
from specmatrix.matrix.workloads.questions import questions
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.registry import CLOSE, margins_file

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
    found = measured(CELL)
    wrong = found.baseline
    for place, answer in enumerate(found.baseline.answers):
        wrong = altered(wrong, place, output_ids=changed(answer.output_ids, (4 + place, 9)))
    outcome = found.judge(OracleGate(), None, wrong)
    name, ids = wrong.answers[0].name, found.baseline.answers[0].output_ids
    assert outcome.state is State.FAIL and outcome.message == (
        f"plain decoding of 2 requests differs from the transformers oracle, first {name} at token 4: {ids[4] ^ 1} "
        f"instead of {ids[4]}"
    )
    expected = oracle_of("llama-mini").continuation(found.baseline.requests[0])
    assert outcome.blame == Blame(name, 4, got=wrong.answers[0].output_ids, expected=expected)
    assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    assert outcome.numbers == {"oracle_tokens": 4 + 5, "ties": 0, "tied_at": "", "wrong": 2}


@pytest.mark.parametrize("target", ["llama-mini", "deepseek-mini"])
def test_margins_along_the_oracles_text_are_the_engines_and_go_on_behind_its_end(target, monkeypatch):
    places = json.loads(margins_file().read_text())[target]
    index = max(range(len(places)), key=lambda prompt: len(places[prompt]))
    ends = len(oracle_of(target).continuations[index])
    request = RequestSpec(f"q{index}", prompt_of(questions()[index][0]), ends + 9)
    stored = [margin(target, request, place) for place in range(ends + 10)]
    monkeypatch.setattr(precision, "oracle_of", lambda _: None)
    computed = [margin(target, request, place) for place in range(ends + 10)]
    within = [min(nats, CLOSE) for nats in computed[:ends]]
    assert stored == pytest.approx([*within, *computed[ends:]], abs=1e-4)
    assert sum(nats < CLOSE for nats in within) >= 2 and stored[-1] == CLOSE


def test_behind_a_tie_the_resumed_run_is_compared(measured, altered):
    found, request = measured(CELL), measured(CELL).baseline.requests[0]
    name, ids = request.name, found.baseline.answers[0].output_ids
    gate = OracleGate(margin=lambda target, request, index: float(index != 4))
    tied = altered(found.baseline, 0, output_ids=changed(ids, (4,)))
    outcome = found.judge(gate, None, tied)
    assert (outcome.state, outcome.numbers["ties"], outcome.numbers["tied_at"]) == (State.PASS, 1, f"{name}@4")
    assert gate.next_tie("llama-mini", request, 0, tied.answers[0].output_ids, half=False) == 4
    assert gate.next_tie("llama-mini", request, 0, ids[:4], half=False) is None, "it ends before the tie"
    assert [gate.is_tie("llama-mini", request, index) for index in (3, 4, 5)] == [False, True, False]
    known = [tied, *(replace(tied, resolved={**tied.resolved, "dtype": dtype}) for dtype in ("float", "bfloat16"))]
    near = OracleGate(margin=lambda *_: 0.2)
    assert [found.judge(near, None, one).state for one in known] == [State.FAIL, State.FAIL, State.PASS]
    place = f"first {name} at token 7: {ids[7] ^ 1} instead of {ids[7]}"
    text = f"FAIL: plain decoding of 1 requests differs from the transformers oracle, {place}"
    for places, verdict in (((), "PASS"), ((2,), text)):
        assert found.verdict(gate, None, replace(tied, resumed={name: ((5, changed(ids[5:], places)),)})) == verdict


def test_without_an_oracle_or_its_prompts_nothing_is_measured(measured):
    found, baseline = measured(CELL), measured(CELL).baseline
    text = "NOT MEASURED: the target has no transformers oracle continuations, so the baseline itself is unverified"
    assert found.verdict(OracleGate(oracle=lambda target: None)) == text
    drawn = replace(baseline, requests=tuple(replace(each, temperature=0.8) for each in baseline.requests))
    outcome = found.judge(OracleGate(), None, drawn)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no token was compared with the oracle")
    assert outcome.numbers == {"oracle_tokens": 0, "ties": 0, "tied_at": "", "wrong": 0}
    samplings = ("greedy", "mixed", "temperature", "rules")
    assert [OracleGate().applies(Cell(sampling=name)) for name in samplings] == [True, True, False, False]
