from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Gate, Outcome
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.questions import ORACLE_PROMPTS
from specmatrix.matrix.workloads.stored_oracle import Oracle


class Measured(NamedTuple):
    """A cell with its run and baseline on the reference engine."""

    prepared: PreparedCell
    run: Run
    baseline: Run

    def judge(self, gate: Gate, run: Run | None = None, baseline: Run | None = None, **fields: object) -> Outcome:
        """The gate's outcome on the run, or another one, with other fields. A mapping is merged into the run's own."""
        run = run or self.run
        merged = {name: {**getattr(run, name), **new} for name, new in fields.items() if isinstance(new, Mapping)}
        return gate.judge(self.prepared, replace(run, **{**fields, **merged}), baseline or self.baseline)

    def verdict(self, gate: Gate, run: Run | None = None, baseline: Run | None = None, **fields: object) -> str:
        """The outcome's state and message: "FAIL: why"."""
        outcome = self.judge(gate, run, baseline, **fields)
        return f"{outcome.state}: {outcome.message}".removesuffix(": ")


@cache
def _measured(cell_id: str) -> Measured:
    torch.set_num_threads(1)
    subject = ReferenceSubject()
    cell = prepare(Cell.from_id(cell_id))
    runs = []
    for prepared in (cell, cell.baseline):
        engine = subject.start_engine(prepared.configuration)
        runs.append(run_requests(engine, prepared.requests, subject.profile.capabilities))
        engine.close()
    return Measured(cell, *runs)


@pytest.fixture(scope="session")
def measured() -> Callable[[str], Measured]:
    """A cell with its run and baseline on the reference engine, by the cell's id."""
    return _measured


@pytest.fixture(scope="session")
def altered() -> Callable[..., Run]:
    """A run with one answer changed: altered(run, index, field=value)."""

    def change(run: Run, index: int, **fields: object) -> Run:
        answers: list[Answer] = list(run.answers)
        answers[index] = replace(answers[index], **fields)
        return replace(run, answers=tuple(answers))

    return change


@pytest.fixture(scope="session")
def oracle_of() -> Callable[[PreparedCell, Run], Oracle]:
    """An oracle that agrees with a run, as read from a file."""

    def make(prepared: PreparedCell, run: Run) -> Oracle:
        found = {answer.name: answer for answer in run.answers}
        shape = (run.resolved["num_steps"], run.resolved["topk"], run.resolved["num_draft_tokens"])
        names = [f"q{index}" for index in range(ORACLE_PROMPTS)]
        rounds = tuple(found[name].accept_lengths if name in found else () for name in names)
        tokens = tuple(found[name].output_ids if name in found else () for name in names)
        scores = tuple(found[name].logprobs if name in found else () for name in names)
        return Oracle(tokens, {(prepared.cell.algorithm, *shape): rounds}, scores)

    return make
