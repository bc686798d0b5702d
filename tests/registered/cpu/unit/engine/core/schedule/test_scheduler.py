"""The scheduler by hand: the test plays the loop and decides what every step accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmatrix.engine.core.schedule.request import Finish, Phase, Request, SamplingParams
from specmatrix.errors import RequestError
from tests.support.schedulers import scheduler_of


def queue(scheduler, *lengths: int, **params: object):
    """Requests 1, 2, .. with prompts of the given lengths, no two of which share a prefix."""
    requests = []
    for rid, length in enumerate(lengths, 1):
        prompt = (rid, *range(100, 99 + length))
        requests.append(Request(rid, prompt, SamplingParams(**{"max_new_tokens": 20} | params), seed=rid))
        scheduler.add(requests[-1])
    return requests


def resolve(scheduler, plan, accepted=2):
    """What the loop does with a step's results, the tokens aside."""
    requests = [scheduler.requests[row.rid] for row in plan.rows]
    for row, request in zip(plan.rows, requests, strict=True):
        count = row.width if plan.prefill else accepted
        scheduler.ledger.settle(row.account, count)
        if request.phase is Phase.RUNNING:
            new = accepted if not plan.prefill else int(row.last_chunk)
            request.output += [7] * new
    scheduler.release_drained(requests)


def turn(scheduler, accepted=2):
    plan = scheduler.plan()
    resolve(scheduler, plan, accepted)
    return plan


def rids(plan):
    return [row.rid for row in plan.rows]


def test_the_requests_of_a_failed_step_run_alone():
    scheduler = scheduler_of()
    requests = queue(scheduler, 3, 3, 3, max_new_tokens=6)
    turn(scheduler)
    failed = scheduler.plan()
    scheduler.isolate(failed)
    resolve(scheduler, failed)
    alone = turn(scheduler)
    assert rids(failed) == [1, 2, 3] and rids(alone) == [1]
    scheduler.passed(alone, requests[0])
    assert sorted(scheduler.isolated) == [2, 3] and rids(turn(scheduler)) == [1]


def test_requests_are_admitted_in_the_order_of_their_arrival():
    scheduler = scheduler_of(rows=2)
    first, second, third = queue(scheduler, 3, 5, 2)
    plan = turn(scheduler)
    assert plan.prefill and rids(plan) == [1, 2] and third.phase is Phase.WAITING
    assert [row.row for row in plan.rows] == [1, 2]
    assert rids(turn(scheduler)) == [1, 2]
    scheduler.finish(first, Finish("length"))
    plan = turn(scheduler)
    assert plan.prefill and rids(plan) == [3] and third.row == 1
    assert rids(turn(scheduler)) == [2, 3]
    assert scheduler.counters.counts["queue.waited"] > 0
    assert second.phase is Phase.RUNNING


def test_a_prefill_row_holds_exactly_what_to_compute():
    scheduler = scheduler_of()
    (request,) = queue(scheduler, 5)
    (row,) = turn(scheduler).rows
    assert (row.start, row.width, row.bound, row.tokens, row.following) == (0, 5, 5, request.prompt, None)
    assert row.pages == ((0, tuple(scheduler.ledger.accounts[1].groups[0].pages)),)
    assert row.writers == ((0, 1),) and row.last_chunk and row.admit == (request.params, 1, request.limit)


def test_a_round_reserves_behind_everything_in_flight():
    scheduler = scheduler_of(width=3)
    queue(scheduler, 4)
    turn(scheduler)
    first, second = scheduler.plan(), scheduler.plan()
    assert [(p.rows[0].width, p.rows[0].bound) for p in (first, second)] == [(3, 7), (3, 10)]
    places = [[(at, len(pages)) for at, pages in plan.rows[0].pages] for plan in (first, second)]
    assert places == [[(2, 2)], [(4, 1)]]
    assert first.rows[0].admit is None
    resolve(scheduler, first, accepted=1)
    third = scheduler.plan()
    assert third.rows[0].bound == 4 + 1 + 3 + 3
    assert scheduler.counters.counts["page.crossed"] == 3


def test_a_drafter_that_reads_the_host_receives_every_token_of_a_round():
    scheduler = scheduler_of(host_tokens=True)
    first, second = queue(scheduler, 4, 2)
    chunks = turn(scheduler)
    assert [row.tokens for row in chunks.rows] == [first.prompt, second.prompt]
    for _ in range(2):
        plan = scheduler.plan()
        assert [row.tokens for row in plan.rows] == [(*r.prompt, *r.output) for r in (first, second)]
        resolve(scheduler, plan)
    untold = scheduler_of()
    queue(untold, 4)
    turn(untold)
    assert untold.plan().rows[0].tokens == ()


def test_the_chunk_budget_is_shared_and_carries_over():
    scheduler = scheduler_of(chunk=4)
    first, second = queue(scheduler, 6, 3)
    plan = turn(scheduler)
    assert [(r.rid, r.start, r.width, r.following) for r in plan.rows] == [(1, 0, 4, first.prompt[4])]
    plan = turn(scheduler)
    assert [(r.rid, r.start, r.width, r.following) for r in plan.rows] == [(1, 4, 2, None), (2, 0, 2, second.prompt[2])]
    assert plan.rows[0].admit is None and plan.rows[1].admit is not None
    plan = turn(scheduler)
    assert [(r.rid, r.start, r.width) for r in plan.rows] == [(2, 2, 1)]
    assert not turn(scheduler).prefill
    assert scheduler.counters.counts["prefill.chunked"] == 2


def test_a_plan_holds_whether_rows_sample_and_the_requested_logprobs():
    scheduler = scheduler_of()
    for rid, params in enumerate(
        (SamplingParams(), SamplingParams(temperature=0.5, top_logprobs_num=3), SamplingParams(return_logprob=True)), 1
    ):
        scheduler.add(Request(rid, (rid,), replace(params, max_new_tokens=4), 0))
    plan = scheduler.plan()
    assert not plan.greedy and plan.logprobs == 3
    scheduler = scheduler_of()
    queue(scheduler, 2)
    plan = scheduler.plan()
    assert plan.greedy and plan.logprobs == -1
    scheduler = scheduler_of()
    queue(scheduler, 2, return_logprob=True)
    plan = scheduler.plan()
    assert (plan.logprobs, plan.prompt_logprobs) == (0, -1)
    scheduler = scheduler_of()
    queue(scheduler, 3, top_logprobs_num=2, logprob_start_len=1)
    assert scheduler.plan().prompt_logprobs == 2


def test_the_youngest_is_retracted_alone_and_the_oldest_goes_on():
    scheduler = scheduler_of(pages=14, size=1, width=2, overrun=0)
    oldest, middle, youngest = queue(scheduler, 2, 2, 2, max_new_tokens=8)
    assert rids(turn(scheduler)) == [1, 2, 3]
    turn(scheduler)
    plan = turn(scheduler)
    assert rids(plan) == [1, 2]
    assert (youngest.phase, youngest.retractions, youngest.row) == (Phase.WAITING, 1, 0)
    assert (oldest.phase, middle.phase) == (Phase.RUNNING, Phase.RUNNING)
    assert scheduler.counters.counts["retract.done"] == 1
    assert youngest.output == [7] * 3 and youngest.prefilled == 0
    # Once there is room it computes its prompt and its output again.
    scheduler.finish(oldest, Finish("length"))
    scheduler.finish(middle, Finish("length"))
    plan = turn(scheduler)
    assert plan.prefill and rids(plan) == [3] and plan.rows[0].tokens == (*youngest.prompt, 7, 7, 7)


def test_one_victim_at_a_time():
    scheduler = scheduler_of(pages=13, size=1, width=2, overrun=2)
    oldest, middle, youngest = queue(scheduler, 3, 2, 2, max_new_tokens=6)
    turn(scheduler)
    flying = scheduler.plan()
    assert rids(flying) == [1, 2, 3] and not scheduler.ledger.counts.free
    for _ in range(2):
        assert scheduler.plan() is None  # request 1 has no room, and the steps of 3 are still in flight
        assert youngest.phase is Phase.DRAINING and middle.phase is Phase.RUNNING
    assert scheduler.counters.counts["retract.done"] == 1
    resolve(scheduler, flying, accepted=1)
    assert youngest.phase is Phase.WAITING and rids(scheduler.plan()) == [1, 2]
    assert oldest.retractions == middle.retractions == 0


@pytest.mark.parametrize(("pages", "admitted"), [(25, []), (26, [2])])
def test_a_new_request_leaves_room_for_every_round_in_flight(pages, admitted):
    """4 tokens and 10 positions of two rounds are running; 2 tokens and 10 positions are queued."""
    scheduler = scheduler_of(pages=pages, size=1, width=5, overrun=10)
    queue(scheduler, 4, max_new_tokens=6)
    assert rids(turn(scheduler)) == [1]
    scheduler.add(Request(2, (2, 100), SamplingParams(max_new_tokens=6), seed=2))
    assert [rid for rid in rids(scheduler.plan()) if rid == 2] == admitted


def test_a_victim_stays_out_of_the_pages_that_rounds_in_flight_need():
    scheduler = scheduler_of(pages=26, size=1, width=5, overrun=10)
    oldest, victim = queue(scheduler, 4, 2, max_new_tokens=6)
    assert rids(turn(scheduler)) == [1, 2]
    earlier, later = scheduler.plan(), scheduler.plan()
    assert not scheduler.ledger.counts.free
    resolve(scheduler, earlier, accepted=1)
    assert scheduler.plan() is None and victim.phase is Phase.DRAINING
    resolve(scheduler, later, accepted=1)
    # Beside one round of the oldest it would fit, and be retracted again for want of the second.
    for _ in range(2):
        plan = scheduler.plan()
        assert not plan.prefill and rids(plan) == [1]
    assert (victim.phase, victim.retractions, oldest.retractions) == (Phase.WAITING, 1, 0)
    for _ in range(2):
        resolve(scheduler, plan, accepted=1)
    scheduler.finish(oldest, Finish("length"))
    assert rids(turn(scheduler)) == [2]


def test_no_request_is_admitted_while_a_victim_drains():
    scheduler = scheduler_of()
    (victim,) = queue(scheduler, 3)
    flying = scheduler.plan()
    scheduler.retract(victim)
    scheduler.add(Request(2, (9,), SamplingParams(max_new_tokens=1), 0))
    assert scheduler.plan() is None
    resolve(scheduler, flying)
    assert rids(scheduler.plan()) == [1, 2]


def test_cached_pages_are_evicted_before_anybody_is_retracted():
    scheduler = scheduler_of(pages=12, size=2, cache=True, width=2, overrun=0)
    (first,) = queue(scheduler, 9, max_new_tokens=2)
    turn(scheduler)
    scheduler.finish(first, Finish("length"))
    assert scheduler.ledger.counts.cached == 4
    second = Request(2, tuple(range(50, 68)), SamplingParams(max_new_tokens=2), 0)
    scheduler.add(second)
    turn(scheduler)
    assert second.phase is Phase.RUNNING
    assert scheduler.counters.counts["prefix.evict"] == 2 and scheduler.counters.counts["retract.done"] == 0


def test_a_cached_prefix_is_not_computed_again():
    scheduler = scheduler_of(cache=True)
    (first,) = queue(scheduler, 7)
    turn(scheduler)
    scheduler.finish(first, Finish("length"))
    again = Request(2, (*first.prompt, 5, 6), SamplingParams(max_new_tokens=4), 0)
    scheduler.add(again)
    (row,) = turn(scheduler).rows
    assert (row.start, row.tokens, again.cached_tokens) == (6, again.prompt[6:], 6)
    assert row.writers == ((0, 1), (6, 2)) and row.generation == 2 and row.pages[0][0] == 0
    assert scheduler.counters.counts["prefix.hit"] == 6


def test_abort_while_waiting_running_draining_retracting_and_done():
    scheduler = scheduler_of(rows=1)
    running, waiting = queue(scheduler, 3, 3)
    plan = scheduler.plan()
    assert scheduler.abort(2) and waiting.phase is Phase.DONE and waiting.finish == Finish("abort")
    assert scheduler.abort(1) and running.phase is Phase.DRAINING
    assert not scheduler.abort(1) and not scheduler.abort(2) and not scheduler.abort(5)
    resolve(scheduler, plan)
    assert running.phase is Phase.DONE and running.finish == Finish("abort") and not scheduler.has_work
    assert not scheduler.ledger.accounts and scheduler.ledger.counts.free == 40
    counts = scheduler.counters.counts
    assert (counts["abort.waiting"], counts["abort.running"]) == (1, 1)


@pytest.mark.parametrize(
    ("prompt", "new", "sentence"),
    [
        ((), 1, "the prompt is empty; allowed: at least one token"),
        ((1,) * 150, 51, r"prompt \(150\) plus max_new_tokens \(51\) is 201 tokens; allowed: at most the context"),
        ((1,) * 70, 8, r"prompt plus max_new_tokens \(78\) and 3 speculative positions do not fit the KV pool of 80"),
    ],
)
def test_a_request_that_can_never_run_is_refused(prompt, new, sentence):
    scheduler = scheduler_of()
    with pytest.raises(RequestError, match=f"^{sentence}"):
        scheduler.add(Request(1, prompt, SamplingParams(max_new_tokens=new), 0))
    assert not scheduler.requests and not scheduler.has_work


def test_a_request_that_fills_the_pool_to_the_last_position_is_taken():
    scheduler = scheduler_of()
    scheduler.add(Request(1, (1,) * 70, SamplingParams(max_new_tokens=7), 0))
    assert scheduler.has_work
