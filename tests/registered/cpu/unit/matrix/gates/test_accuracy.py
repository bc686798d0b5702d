from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.accuracy import AccuracyGate, binomial_below, card_accuracy, extract
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

CELL = prepare(Cell.from_id("eagle3.gsm"))
GATE = AccuracyGate(card=lambda target: 0.8)


@pytest.fixture(scope="session")
def graded(measured):
    """A run whose i-th question is answered correctly if `marks[i]` is 1; the rest is a real run."""
    _, run, _ = measured("eagle3.s3.k4.n8.v2.p16.pair")

    def make(marks, text="2+3=<<2+3=5>>5.\n#### {}"):
        requests = tuple(RequestSpec(f"q{i}", "Question:", 8, answer="so 2+3=5.\n#### 5") for i in range(len(marks)))
        answers = tuple(
            Answer(f"q{i}", (1,), (1,), text.format(5 if mark else 7), "stop", 1, 0, ()) for i, mark in enumerate(marks)
        )
        return replace(run, requests=requests, answers=answers)

    return make


@pytest.mark.parametrize(("lost", "state"), [(0, State.PASS), (12, State.PASS), (13, State.FAIL)])
def test_thirteen_lost_questions_are_red(graded, lost, state):
    """2^-12 > 0.00015 > 2^-13."""
    baseline = [1] * 45 + [0] * 3
    outcome = GATE.judge(CELL, graded([0] * lost + baseline[lost:]), graded(baseline))
    assert outcome.state is state
    assert (outcome.numbers["lost"], outcome.numbers["won"], outcome.numbers["n"]) == (lost, 0, 48)
    assert outcome.numbers["outcomes"] == "0" * lost + "1" * (45 - lost) + "000"
    assert outcome.interval[0] < outcome.numbers["accuracy"] < outcome.interval[1]
    text = "13 answers lost and 0 won against plain decoding (strict extractor, p = 0.00012)"
    assert outcome.message == (text if state is State.FAIL else "")


def test_each_extractor_finds_answers_that_the_other_misses(graded):
    marks = [1] * 48
    overrun = GATE.judge(CELL, graded(marks, "#### {}\nQuestion: 12"), graded(marks))
    text = "48 answers lost and 0 won against plain decoding ({} extractor, p = 3.6e-15)"
    assert (overrun.state, overrun.message) == (State.FAIL, text.format("flexible"))
    cut = GATE.judge(CELL, graded(marks, "2+3=<<2+3={}"), graded(marks))
    assert (cut.state, cut.message) == (State.FAIL, text.format("strict"))


def test_a_target_that_lost_its_skill_trips_the_wire(graded):
    """Both sides are equally wrong: only the target's card shows it. Sampling may cost a fifth of its rate."""
    for prepared, rate in ((CELL, 0.8), (prepare(CELL.cell._replace(sampling="temperature")), 0.8 * 0.8)):
        for right in range(48):
            run = graded([1] * right + [0] * (48 - right))
            outcome = GATE.judge(prepared, run, run)
            expected = State.FAIL if binomial_below(right, 48, rate) < 1e-4 else State.PASS
            assert outcome.state is expected
        outcome = GATE.judge(prepared, graded([0] * 48), graded([0] * 48))
        sampled = "" if rate == 0.8 else " (at least 64.0% expected under sampling)"
        assert outcome.message == f"0 of 48 answers are correct; the target's card says 80.0%{sampled}"
    assert binomial_below(26, 48, 0.8) < 1e-4 < binomial_below(28, 48, 0.8)
    assert binomial_below(17, 48, 0.64) < 1e-4 < binomial_below(19, 48, 0.64)


def test_without_questions_or_card_nothing_is_measured(graded, tmp_path):
    run = graded([1, 1])
    blank = replace(run, requests=tuple(replace(request, answer=None) for request in run.requests))
    for gate, seen, text in (
        (GATE, blank, "no request has a reference answer"),
        (AccuracyGate(card=lambda target: None), run, "target llama-mini has no card.json with its accuracy"),
        (GATE, replace(run, answers=()), "the run has no answer for request q0"),
    ):
        outcome = gate.judge(CELL, seen, run)
        assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
    assert card_accuracy("llama-mini", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("He has 4+5=$<<4+5=9>>9.\n#### 9", "9", "9"),
        ("#### 1,234", "1234", "1234"),
        ("#### -3.", "-3", "-3"),
        ("it is $18.", None, "18"),
        ("#### 1.50.", "1.50", "1.50"),
        ("no number", None, None),
    ],
)
def test_extractors(text, strict, flexible):
    assert (extract(text, "strict"), extract(text, "flexible")) == (strict, flexible)
