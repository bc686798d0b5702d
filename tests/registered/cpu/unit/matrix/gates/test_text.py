"""Texts that differ from the oracle's or the baseline's are found, and ties are not counted against a subject."""

from __future__ import annotations

from dataclasses import replace

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.gates.text import TextGate
from specmatrix.matrix.subjects.protocol import Answer, Run
from specmatrix.matrix.workloads.finish import ending
from specmatrix.matrix.workloads.prepared_cell import prepare

PREPARED = prepare(Cell.from_id("eagle3.pair"))
NAME = PREPARED.requests[0].name


def run(**texts: str) -> Run:
    """Answers with the oracle's texts, or with these."""
    answers = []
    for request in PREPARED.requests:
        due = ending(request, OracleGate().text("llama-mini", request), "llama-mini")
        text = texts.get(request.name, due.text)
        answers.append(Answer(request.name, (), (), text, due.reason, due.matched, 0, ()))
    return Run(PREPARED.requests, tuple(answers), {}, {}, {}, None, None, 1.0)


def test_the_oracles_texts_pass_and_another_text_fails():
    gate, good = TextGate(), run()
    outcome = gate.judge(PREPARED, good, good)
    characters = sum(len(answer.text) for answer in good.answers)
    assert (outcome.state, outcome.numbers) == (State.PASS, {"characters": characters, "ties": 0, "wrong": 0})
    text = good.answers[0].text
    for at, other in ((0, "X" + text[1:]), (len(text) - 3, text[:-3]), (9, text[:9] + "??" + text[11:])):
        outcome = gate.judge(PREPARED, run(**{NAME: other}), good)
        assert outcome.state is State.FAIL and outcome.message == (
            f"2 texts differ from the oracle or from plain decoding, first {NAME} at character {at}: "
            f"{other[at : at + 20]!r}, not {text[at : at + 20]!r}"
        )


def test_a_tie_of_the_oracle_is_no_failure():
    gate, good = TextGate(target_oracle=OracleGate(margin=lambda *_: 0.0)), run()
    outcome = gate.judge(PREPARED, run(**{NAME: good.answers[0].text[:9] + "??"}), good)
    assert outcome.state is State.PASS and outcome.numbers["ties"] == 2


def test_without_an_oracle_the_baseline_decides():
    gate, good = TextGate(target_oracle=None), run()
    assert gate.judge(PREPARED, good, replace(good)).state is State.PASS
    for text in ("no", good.answers[0].text + " and on"):
        outcome = gate.judge(PREPARED, run(**{NAME: text}), good)
        assert (outcome.state, outcome.numbers["wrong"]) == (State.FAIL, 1)
    outcome = gate.judge(PREPARED, good, good)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no text was compared")


def test_sampled_texts_are_not_compared():
    samplings = ("greedy", "mixed", "rules", "temperature")
    assert [TextGate().applies(Cell(algorithm="eagle3", sampling=name)) for name in samplings] == [True] * 3 + [False]
    gate, good = TextGate(target_oracle=None), run()
    sampled = replace(good, requests=tuple(replace(each, temperature=0.8) for each in PREPARED.requests))
    other = replace(sampled, answers=tuple(replace(each, text="another") for each in good.answers))
    assert gate.judge(PREPARED, other, good).state is State.NOT_MEASURED
    mixed = replace(other, requests=(sampled.requests[0], *good.requests[1:]))
    assert gate.judge(PREPARED, mixed, good).numbers["wrong"] == len(good.requests) - 1
