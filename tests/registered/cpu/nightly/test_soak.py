"""A long run of short requests on small memory: the account stays exact, and nothing of ended requests stays."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import repeat

import pytest
import torch

from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.engine.spec.dflash import ParallelDrafter
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.leaks import LeaksGate
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.same_texts import SameTexts, rounds_of
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Served
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.questions import questions as rows
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of

CELLS = {"eagle3.s3.v2.p4.m4.burst": AutoregressiveDrafter, "eagle3.s3.parallel.mixed_lengths": ParallelDrafter}
TEXTS = 16
MEMORY = 560  # tokens: four requests, and the texts of as many again


def questions(seed: int, count: int) -> list[RequestSpec]:
    """Short requests in waves of five, over few texts, so that some are read again and others were evicted."""
    choice, requests, before = random.Random(seed), list[RequestSpec](), tuple[str, ...]()
    for first in range(0, count, 5):
        wave = [
            RequestSpec(
                f"r{first + place}",
                prompt_of(rows()[choice.randrange(TEXTS)][0]),
                3 + choice.randrange(9),
                ignore_eos=True,
                after=before,
                abort_after=2 if choice.random() < 0.1 else None,
            )
            for place in range(5)
        ]
        before = tuple(request.name for request in wave)
        requests += wave
    return requests


def soaked(
    cell: str, rounds: int, count: int
) -> tuple[list[tuple[Outcome, Outcome, Outcome]], tuple[Served, ...], SameTexts]:
    """The verdicts of `schedule`, `leaks` and `ledger` after each round of requests on one engine, all requests, and
    what their rounds were, of which none is apart from an earlier one."""
    torch.set_num_threads(1)
    prepared, subject = prepare(Cell.from_id(cell)), ReferenceSubject()
    engine = subject.start_engine(replace(prepared.configuration, max_total_tokens=MEMORY))
    history: tuple[Served, ...] = ()
    found, texts = [], SameTexts()
    for seed in range(rounds):
        run = run_requests(engine, questions(seed, count), subject.profile.capabilities, history)
        history = run.served
        assert not texts.apart(f"round {seed}", [(one.name, rounds_of(repeat(()), one)) for one in run.answers])
        judges = ScheduleGate(), LeaksGate(), LedgerGate()
        found.append(tuple(gate.judge(prepared, run, run) for gate in judges))
    return found, history, texts


@pytest.mark.parametrize("cell", CELLS)
def test_a_thousand_requests_leave_nothing_and_cost_what_they_need(cell):
    found, served, texts = soaked(cell, rounds=10, count=100)
    for outcomes in found:
        assert [(outcome.state, outcome.message) for outcome in outcomes] == [(State.PASS, "")] * 3
    last = found[-1][0].numbers
    assert last["evicted"] > 100 and last["reused"] > 1000 and found[-1][1].numbers["sent"] == 1000
    assert sum(max(0, len(one.rounds) - 1) for one in served) - len(texts.known) > 500
    assert sum(length > 1 for one in served for length in one.rounds) > 1000


@pytest.mark.parametrize(("cell", "drafter"), CELLS.items())
def test_drafts_that_get_worse_with_an_engines_age_are_found(monkeypatch, cell, drafter):
    propose, rounds = drafter.propose, []

    def aged(self, batch, relay):
        tree = propose(self, batch, relay)
        rounds.append(tree)
        worse = torch.cat((tree.tokens[:, :1], tree.tokens[:, 1:] * 0), 1)
        return tree._replace(tokens=worse) if len(rounds) > 200 else tree

    monkeypatch.setattr(drafter, "propose", aged)
    with pytest.raises(AssertionError, match="verify round 1 of r"):
        soaked(cell, rounds=3, count=100)
    assert len(rounds) > 200
