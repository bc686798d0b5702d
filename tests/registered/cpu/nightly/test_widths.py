"""Verification widths of 5, 7 and 9, a tree that may be one chain of its whole depth, chunks whose tails are as long as
a round is wide, and several workloads in turn.

The lock has no such sizes: each gate judges its own engine, whose first workload is served again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.device.relay import Relay
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Gate, State
from specmatrix.matrix.gates.leaks import LeaksGate
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec

GATES: tuple[Gate, ...] = (LedgerGate(), ScheduleGate(), LeaksGate(), FinishGate(), LosslessGate(oracle=None))


class Shape(NamedTuple):
    """A cell, and the sizes of a draft that replace its own."""

    cell: str
    steps: int
    topk: int
    nodes: int


SHAPES = (
    Shape("eagle3.s3.k1.n4.v2.p4.mixed_lengths.mixed", 4, 1, 5),
    Shape("standalone.s3.v2.mixed_lengths.length", 6, 1, 7),
    Shape("eagle3.s3.k4.n8.v2.p16.mixed_lengths", 3, 4, 7),
    Shape("eagle.s3.k4.n8.v1.p4.mixed_lengths.mixed", 3, 4, 9),
    Shape("ngram.s3.k4.n8.mixed_lengths", 3, 4, 9),
    Shape("eagle3.s3.k4.n8.v2.p4.mixed_lengths", 3, 4, 4),
)


def seeded(requests: Sequence[RequestSpec], number: int) -> tuple[RequestSpec, ...]:
    """The requests with other seeds and in another order."""
    moved = [*requests[number % len(requests) :], *requests[: number % len(requests)]]
    return tuple(replace(one, seed=None if one.seed is None else one.seed + number) for one in moved)


def served(shape: Shape, chunk: int | None = None, workloads: int = 3) -> list[tuple[PreparedCell, Run, Run]]:
    """Several workloads, the first one again at the end, on one engine; each with its baseline."""
    torch.set_num_threads(1)
    prepared, subject = prepare(Cell.from_id(shape.cell)), ReferenceSubject()
    sizes = {"speculative_num_steps": shape.steps, "speculative_eagle_topk": shape.topk}
    sizes |= {"speculative_num_draft_tokens": shape.nodes}
    more = {} if chunk is None else {"chunked_prefill_size": chunk}
    engine = subject.start_engine(replace(prepared.configuration, **sizes, **more))
    plain = subject.start_engine(prepared.baseline.configuration)
    assert engine.resolved["num_draft_tokens"] == shape.nodes
    found, history = [], ()
    for number in [*range(workloads), 0]:
        requests = seeded(prepared.requests, number)
        run = run_requests(engine, requests, subject.profile.capabilities, history)
        history = run.served
        found.append((prepared, run, run_requests(plain, requests, subject.profile.capabilities)))
    return found


def faults(found: Sequence[tuple[PreparedCell, Run, Run]]) -> list[str]:
    return [
        f"workload {number}: {outcome.gate}: {outcome.message}"
        for number, (prepared, run, baseline) in enumerate(found)
        for outcome in (gate.judge(prepared, run, baseline) for gate in GATES)
        if outcome.state is not State.PASS
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.cell}-width-{shape.nodes}")
def test_odd_widths_over_several_workloads(shape: Shape):
    found = served(shape)
    assert faults(found) == []
    drafted = sum(run.evidence["spec.drafted"] for _, run, _ in found)
    assert 0 < sum(run.evidence["spec.accepted"] for _, run, _ in found) < drafted
    if shape.nodes == shape.steps + 1 and shape.topk > 1:
        full = sum(run.evidence["spec.full_accept"] for _, run, _ in found)
        branched = sum(run.evidence["tree.branched"] for _, run, _ in found)
        assert full and branched < sum(run.evidence["decode.round"] for _, run, _ in found)
    texts = [{answer.name: answer.output_ids for answer in run.answers} for _, run, _ in (found[0], found[-1])]
    assert texts[0] == texts[1], "the first workload is the same after others"


@pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda shape: f"width-{shape.nodes}")
def test_the_tail_of_a_chunked_prompt_is_as_long_as_a_round_is_wide(shape: Shape):
    lengths = [len(prompt_ids(request)) for request in prepare(Cell.from_id(shape.cell)).requests]
    chunk = next(size for size in range(shape.nodes + 1, max(lengths)) if lengths[0] % size == shape.nodes)
    found = served(shape, chunk, workloads=1)
    assert faults(found) == []
    tails = {number for _, run, _ in found for operation, _, number, _ in run.journal if operation == "launch"}
    assert {shape.nodes, chunk} <= tails


def test_what_only_a_later_workload_shows_is_seen(monkeypatch):
    """A drafter's state that a row keeps from the request before, and a row that is not given back."""
    shape = SHAPES[0]
    admit = Relay.admit
    seen = []

    def keeps(relay: Relay, rows: Sequence[object]) -> None:
        seen.extend(rows)
        admit(relay, [row for row in rows if len(seen) < 12])

    monkeypatch.setattr(Relay, "admit", keeps)
    assert faults(served(shape, workloads=2))
    monkeypatch.undo()
    release = Scheduler.release_drained

    def forgets(scheduler: Scheduler, requests: Sequence[object]) -> None:
        release(scheduler, requests)
        if len(scheduler.free_rows) == scheduler.max_running:
            scheduler.free_rows.pop()

    monkeypatch.setattr(Scheduler, "release_drained", forgets)
    assert any(fault.startswith("workload 0: leaks: 1 rows left") for fault in faults(served(shape, workloads=1)))
