from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch

from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.oracles.transformers import Oracle
from specmatrix.matrix.run.runner import drive, whole
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Run
from specmatrix.matrix.workloads.build import ORACLE_PROMPTS, workload


@cache
def _both(cell_id: str) -> tuple[Run, Run]:
    torch.set_num_threads(1)
    cell, subject = Cell.from_id(cell_id), ReferenceSubject()
    asks = workload(cell, 0)
    plain = whole(asks)
    runs = []
    for config, requests in ((asked(cell), asks), (asked(cell.canonical), plain)):
        session = subject.launch(config)
        runs.append(drive(session, requests, subject.capabilities))
        session.close()
    return runs[0], runs[1]


@pytest.fixture(scope="session")
def measured() -> Callable[[str], tuple[Cell, Run, Run]]:
    """A cell's run and baseline on the reference engine, by the cell's id."""
    return lambda cell_id: (Cell.from_id(cell_id), *_both(cell_id))


@pytest.fixture(scope="session")
def altered() -> Callable[..., Run]:
    """A run with one answer changed: altered(run, index, field=value)."""

    def change(run: Run, index: int, **fields: object) -> Run:
        answers: list[Answer] = list(run.answers)
        answers[index] = replace(answers[index], **fields)
        return replace(run, answers=tuple(answers))

    return change


@pytest.fixture(scope="session")
def witnessed() -> Callable[..., Run]:
    """A run with other counters: witnessed(run, {probe: count})."""

    def change(run: Run, counts: Mapping[str, int]) -> Run:
        return replace(run, witness={**run.witness, **counts})

    return change


@pytest.fixture(scope="session")
def oracle_of() -> Callable[[Cell, Run], Oracle]:
    """An oracle that agrees with a run, as its file would."""

    def make(cell: Cell, run: Run) -> Oracle:
        found = {answer.name: answer for answer in run.answers}
        shape = (run.resolved["num_steps"], run.resolved["topk"], run.resolved["num_draft_tokens"])
        names = [f"q{index}" for index in range(ORACLE_PROMPTS)]
        rounds = tuple(found[name].accept_lengths if name in found else () for name in names)
        tokens = tuple(found[name].output_ids if name in found else () for name in names)
        scores = tuple(found[name].logprobs if name in found else () for name in names)
        return Oracle(tokens, {(cell.algorithm, *shape): rounds}, scores)

    return make
