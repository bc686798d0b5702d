"""Rounds of changing width with others in flight: same tokens, exact reservations, every page freed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specmatrix.engine.build import _steps
from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import RequestError
from specmatrix.matrix.cells.cell import Cell, zoo_facts
from tools.simulation.toy import reference, request, toy_loop


def run(loop, jobs, late=0):
    """Run jobs, each a prompt and a length, the last `late` of them added on the way; check reservations after every
    iteration."""
    requests = [request(i, p, SamplingParams(max_new_tokens=n)) for i, (p, n) in enumerate(jobs, 1)]
    queued = requests[: len(requests) - late]
    for r in queued:
        loop.add(r)
    pages: dict[tuple[int, int], int] = {}
    for turn in range(20_000):
        if len(queued) < len(requests) and (turn % 3 == 2 or not loop.busy):
            queued.append(requests[len(queued)])
            loop.add(queued[-1])
        if not loop.busy:
            return requests
        loop.step()
        check_reservations(loop, pages)
    raise AssertionError("the loop does not end")


def check_reservations(loop, pages):
    """From admission to retraction a request never loses pages, and owns no more than its lag's widest rounds need
    (sglang#23336, #26354)."""
    scheduler = loop.scheduler
    for r in scheduler.active:
        account = scheduler.ledger.accounts[r.account]
        key = (r.rid, r.retractions)
        owned = len(account.groups[0].pages)
        assert owned >= pages.get(key, 0)
        pages[key] = owned
        if r.decoding:
            ahead = max(account.committed, r.prefill_target) + (loop.lag + 1) * scheduler.steps.max_width
            assert owned <= -(-ahead // scheduler.ledger.page_size)


EAGER = (AdaptiveSlot(1, (1, 3, 7), 1.0, 1, 0), AdaptiveSlot(3, (2, 5), 1.0, 1, 0))


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_width_moves_while_rounds_are_in_flight(lag):
    loop = toy_loop(lag=lag, page_size=4, pages=120, slots=EAGER, width=4, rows=6)
    jobs = [([i, 2 * i], 12 + 6 * i) for i in range(1, 6)]
    requests = run(loop, jobs, late=3)
    assert [r.output for r in requests] == [reference(r.prompt, r.params)[0] for r in requests]
    counts = loop.counters.counts
    assert all(counts[f"adaptive.{name}"] for name in ("switched_up", "switched_down", "batch_switch"))
    assert len({record.width for record in loop.scheduler.steps.trace}) >= 3
    assert counts["adaptive.activated"] == counts["decode.round"]


def test_a_round_counts_for_the_slot_of_its_own_batch_and_width():
    """At lag 1 a result arrives after a request joined or left."""
    loop = toy_loop(lag=1, page_size=4, pages=80, slots=EAGER, width=4, rows=4)
    launched, launch = [], loop.executor.launch

    def recorded(plan):
        if not plan.prefill:
            launched.append((len(plan.rows), plan.rows[0].width))
        return launch(plan)

    loop.executor.launch = recorded
    run(loop, [([i, 1], 6 + 9 * i) for i in range(4)], late=2)
    trace = loop.scheduler.steps.trace
    assert {size for size, _ in launched} == {1, 2, 3}
    assert [(record.batch_size, record.width) for record in trace] == launched[: len(trace)]
    assert [record.slot for record in trace] == [3 if record.batch_size >= 3 else 1 for record in trace]
    assert len(trace) == len(launched) - 1


def test_a_request_that_fits_only_a_narrower_round_is_refused():
    """Admission reserves for the widest round, whatever runs first."""
    loop = toy_loop(lag=1, page_size=4, pages=4, slots=EAGER, width=2)
    with pytest.raises(RequestError, match=r"prompt plus max_new_tokens \(3\) and 16 speculative positions do not fit"):
        loop.add(request(1, [1], SamplingParams(max_new_tokens=2)))


@pytest.mark.parametrize(("largest", "slot"), [(0, 4), (8, 8), (4, 4)])
def test_an_engines_graphs_pad_a_batch_before_it_has_a_slot(largest, slot):
    cell = Cell.from_id("eagle3.table.v2.ramp.length")
    found = resolve(cell.config(), zoo_facts(cell))
    bounds = tuple(replace(one, batch_from=size) for one, size in zip(found.adaptive_slots, (1, 4, 8, 64), strict=True))
    started = replace(found, adaptive_slots=bounds, cuda_graph_max_bs=largest)
    steps = _steps(started, SimpleNamespace(), Counters())
    steps.activate(5)
    steps.observe(5, 2, [1] * 5)
    assert steps.trace[-1].slot == slot
