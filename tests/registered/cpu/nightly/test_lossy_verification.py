"""transformers' ensemble verification, whose loss is known exactly: it accepts and draws by w p + (1 - w) q."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from examples.lossy_verification import LOSS, Ensemble
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.chances import ChancesGate
from specmatrix.matrix.gates.distribution import DistributionGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.oracles.drawn_rounds import Text
from specmatrix.matrix.oracles.precision import filtered
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.engine_process import start_engine
from specmatrix.matrix.subjects.protocol import AcceptanceRule
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = Cell.from_id("standalone.temperature")
DRAWS = 400


def exact_loss(request, prompt, weight):
    """The total variation of two tokens: transformers never drafts the last one of a text, which is drawn from p."""
    paths = [((), 1.0, 1.0)]
    with torch.inference_mode():
        for _ in range(2):
            grown = []
            for path, right, mixed in paths:
                text = Text(CELL.target, CELL.algorithm, request, 0, prompt, path)
                known = len(prompt) + len(path) - 1
                (law,) = text.target_laws(known, ())
                q = filtered(request, text.draft((3, 1, 4)).after([known], [()], [[]])[1][0]).masses
                nu = weight * law.masses + (1 - weight) * q
                grown += [((*path, int(x)), right * law.masses[x], mixed * nu[x]) for x in np.flatnonzero(nu > 1e-6)]
            paths = grown
    return sum(abs(right - mixed) for _, right, mixed in paths) / 2


@pytest.fixture(scope="module", params=[0.9, 0.5])
def lossy(request):
    """A weight, the cell, its run, and the loss of that weight."""
    subject = Ensemble()
    subject.weight = request.param
    prepared = prepare(CELL, workload=lambda cell, seed: workload(cell, seed, DRAWS), subject=subject.name)
    command = subject.translate(prepared)
    engine = start_engine(subject, command)
    run = run_requests(engine, prepared.requests, subject.profile.capabilities, (), command)
    engine.close()
    draw = prepared.requests[-1]
    loss = exact_loss(draw, run.answers[-1].prompt_ids, subject.weight)
    return subject.weight, prepared, replace(run, resolved={"num_draft_tokens": 4}), loss


def test_a_lossy_engine_passes_with_its_loss_and_is_red_with_less_and_with_none(lossy):
    weight, prepared, run, loss = lossy

    def judged(rule, of=DistributionGate):
        return of(accepts=lambda cell: rule).judge(prepared, run, run)

    stated = judged(AcceptanceRule("lossy", "", round(loss, 2)))
    assert stated.state is State.PASS and 0 <= stated.numbers["at_least"] < loss, stated
    if weight == 0.9:
        assert loss < LOSS and judged(AcceptanceRule("lossy", "", LOSS)).state is State.PASS
        return
    assert stated.numbers["at_least"] > LOSS, stated
    text = f"are a total variation of {stated.numbers['at_least']:.3f} or more from the target's distribution"
    assert text in judged(AcceptanceRule("lossy", "", LOSS)).message
    assert "do not follow the target's" in judged(AcceptanceRule("reject")).message
    often = judged(AcceptanceRule("reject"), ChancesGate)
    assert often.message.startswith("draft 1 was accepted in ")
    assert often.numbers["per_position"][0] > often.numbers["due_per_position"][0] + 0.2
