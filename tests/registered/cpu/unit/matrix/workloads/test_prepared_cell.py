"""Preparing a cell: each part once, and the plain form of its requests."""

from collections import Counter
from dataclasses import replace

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import ENGINE_SEED, Cell, asked, zoo_facts
from specmatrix.matrix.cells.constraints import expect, explain
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec
from tests.support.refusals import refusal


@pytest.mark.parametrize("text", ["eagle3.s3.k4.n8.v2.p16.pair", "standalone.s3.k1.n6", "eagle3.k4"])
@pytest.mark.parametrize("tier", ["cpu", "gpu1"])
def test_everything_follows_from_the_cell(text, tier):
    cell = Cell.from_id(text)
    prepared = prepare(cell, tier, seed=2)
    assert prepared.asked == cell.config() and prepared.configuration == asked(cell, prepared.gpus)
    assert prepared.facts == zoo_facts(cell)
    assert (prepared.constraints, prepared.expectation) == (explain(cell), expect(cell))
    assert isinstance(prepared.predicted, ConfigError) == bool(prepared.predicted_refusal) == (text == "eagle3.k4")
    assert prepared.requests == workload(cell, 2)


def test_a_combination_that_is_no_cell_is_not_prepared():
    assert refusal(prepare, Cell.from_id("none.tight")).startswith(
        "cell none.tight is redundant (alone-under-pressure)"
    )


def test_baselines_run_plain_requests_on_plain_starts():
    prepared = prepare(Cell.from_id("eagle3.s3.k4.n8.v2.p16.pair.stream.abort_running"), seed=1)
    baseline, session_baseline = prepared.baseline, prepared.session_baseline
    assert (baseline.cell, session_baseline.cell) == (prepared.cell.canonical, prepared.cell.session_baseline)
    assert baseline.configuration == asked(prepared.cell.canonical) and baseline.expectation == "runs"
    assert baseline.requests == session_baseline.requests and session_baseline.requests is baseline.requests
    assert any(request.abort_after is not None for request in prepared.requests)
    assert all(request.abort_after is None and request.refused is None for request in baseline.requests)


def test_the_plain_form_of_requests():
    turn = RequestSpec("b", "?", 4, 0.7, after=("no", "a"), session=Continuation("s", True, "a"), closes_after=2)
    requests = (
        RequestSpec("a", "?", 4, abort_after=1, top_logprobs=3),
        turn,
        RequestSpec("no", "?", 4, refused=Refusal.CLOSED),
        RequestSpec("c", "?", 4),
    )
    first, second, last = prepare(Cell(), workload=lambda cell, seed: requests).baseline.requests
    assert (first.name, first.abort_after, first.top_logprobs) == ("a", None, 3)
    assert second == replace(turn, after=("a",), session=replace(turn.session, resend=True), closes_after=None)
    assert last == replace(requests[3], top_logprobs=2)


def test_a_baseline_completes_each_prompt_once_and_with_a_seed():
    requests = (RequestSpec("a", "?", 4, 0.7, seed=0, n=3), RequestSpec("b", "?", 4, 0.7, seed=None, n=2))
    cell = Cell.from_id("none.mixed_lengths.rules")
    plain = prepare(cell, workload=lambda *_: requests).baseline.requests
    assert [(one.name, one.seed, one.n) for one in plain] == [
        *(("a", 0, 1), ("a#1", 1, 1), ("a#2", 2, 1)),
        *(("b", ENGINE_SEED, 1), ("b#1", ENGINE_SEED + 1, 1)),
    ]
    v1 = prepare(Cell.from_id("none.v1.mixed_lengths.rules"), workload=lambda *_: requests).baseline.requests
    assert [one.seed for one in v1] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("text", ["eagle3.k4", "eagle3.pair", "standalone.s3.k1.n6"])
def test_a_configuration_is_built_once_for_each_cell(monkeypatch, text):
    """A cell that is refused, one that runs and one that is rewritten, baselines and tables apart."""
    cell, built = Cell.from_id(text), Counter()
    runner = Runner(ReferenceSubject(), seed=0)
    runner.run_cell(cell)
    config = Cell.config

    def counted(self):
        built[self] += 1
        return config(self)

    monkeypatch.setattr(Cell, "config", counted)
    assert runner.run_cell(cell).state == "PASS"
    assert built == {cell: 1}
