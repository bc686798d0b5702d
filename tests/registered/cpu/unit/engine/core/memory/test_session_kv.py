"""Accounts that outlive their request, by hand: kept, inherited, rolled back, dropped, and never locked."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import Finish, Phase, Request, SamplingParams
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.errors import LedgerError
from tests.support import schedulers


def scheduler_of(span=0, **given: object) -> Scheduler:
    return schedulers.scheduler_of(span=span, context=400, **given)


def turn(scheduler, rid, tokens, account=0, holds=True, new=20) -> Request:
    prompt = tuple(tokens) if isinstance(tokens, list) else (rid, *range(100, 99 + tokens))
    request = Request(rid, prompt, SamplingParams(max_new_tokens=new), 0, account=account, holds=holds)
    scheduler.add(request)
    return request


def resolve(scheduler, plan, accepted):
    requests = [scheduler.requests[row.rid] for row in plan.rows]
    for row, request in zip(plan.rows, requests, strict=True):
        scheduler.settle(row, row.width if plan.prefill else accepted)
        if request.phase is Phase.RUNNING:
            request.output += [7] * (1 if plan.prefill else accepted)
            if plan.prefill:
                scheduler.publish(request)
    scheduler.release_drained(requests)
    scheduler.check()


def step(scheduler, accepted=2):
    plan = scheduler.plan()
    resolve(scheduler, plan, accepted)
    return plan


def first_turn(scheduler, rid=1, tokens=5, rounds=1, shown=None, new=20):
    """A turn that ends with nothing in flight; `shown` of its output tokens are shown."""
    request = turn(scheduler, rid, tokens, new=new)
    for _ in range(rounds + 1):
        step(scheduler)
    if shown is not None:
        del request.output[shown:]
    scheduler.finish(request, Finish("length"))
    scheduler.check()
    return request


@pytest.mark.parametrize(
    ("shown", "keep", "trimmed"),
    [(3, 7, 0), (2, 7, 0), (1, 6, 1)],
    ids=["the last token has no KV", "the run ends with the last shown token", "a token past the end"],
)
def test_a_session_keeps_kv_computed_for_shown_tokens(shown, keep, trimmed):
    scheduler = scheduler_of()
    request = first_turn(scheduler, shown=shown)  # 5 prompt positions, then a round of 2
    assert request.phase is Phase.DONE and list(scheduler.held.order) == [1]
    account = scheduler.ledger.accounts[1]
    assert (account.committed, len(account.groups[0].pages)) == (keep, 4 if keep > 6 else 3)
    counts = scheduler.counters.counts
    assert (counts["session.held"], counts["session.trimmed"]) == (1, trimmed)


def test_the_next_turn_begins_on_the_kept_pages_in_a_new_row():
    scheduler = scheduler_of(cache=True)
    before = first_turn(scheduler)
    pages = list(scheduler.ledger.accounts[1].groups[0].pages)
    other = turn(scheduler, 2, 3, holds=False)
    request = turn(scheduler, 3, [*before.tokens, 50, 51], account=1)
    plan = step(scheduler)
    row = plan.rows[1]
    assert (row.rid, row.account, row.row, row.start, row.tokens) == (3, 1, request.row, 7, (7, 50, 51))
    ((first, entered),) = row.pages
    assert entered[: len(pages)] == tuple(pages) and first == 0
    assert row.writers == ((0, 1), (7, 3)) and row.admit is not None
    assert (request.inherited, request.cached_tokens, request.prefilled) == (7, 7, 10)
    assert scheduler.counters.counts["session.inherited"] == 7
    scheduler.finish(request, Finish("length"))
    # Only the first turn's prompt may enter the prefix cache: draft KV of the seam is not that of the history.
    assert len(scheduler.held) == 1 and scheduler.ledger.accounts[1].groups[0].shared == 2
    scheduler.finish(other, Finish("length"))


@pytest.mark.parametrize(("span", "start"), [(0, 7), (1, 6), (2, 5)])
def test_positions_whose_draft_kv_waits_for_the_next_tokens_are_computed_again(span, start):
    scheduler = scheduler_of(span=span)
    before = first_turn(scheduler, shown=2)
    request = turn(scheduler, 2, [*before.tokens, 50, 51], account=1)
    (row,) = step(scheduler).rows
    assert (row.start, row.tokens) == (start, request.prompt[start:])
    assert (request.inherited, request.cached_tokens) == (7, start)
    assert scheduler.ledger.accounts[1].committed == 9


def test_cached_pages_and_those_behind_the_window_are_not_recomputed():
    scheduler = scheduler_of(cache=True, span=2)
    before = first_turn(scheduler, tokens=7, rounds=0)  # 7 positions computed; tokens up to 8 known, pages up to 6
    assert scheduler.ledger.accounts[1].groups[0].shared == 3
    turn(scheduler, 2, [*before.tokens, 50], account=1)
    assert step(scheduler).rows[0].start == 6
    scheduler = scheduler_of(window=(40, 2), span=3, size=1)
    before = turn(scheduler, 1, 9)
    step(scheduler)
    scheduler.finish(before, Finish("length"))
    turn(scheduler, 2, [*before.tokens, 50], account=1)
    assert step(scheduler).rows[0].start == 9


@pytest.mark.parametrize("how", ["abort", "retract", "error"])
@pytest.mark.parametrize("window", [None, (60, 4, 9)], ids=["full", "windowed"])
def test_a_turn_that_stops_within_its_recomputation_keeps_what_it_inherited(window, how):
    scheduler = scheduler_of(span=3, chunk=1, window=window)
    before = turn(scheduler, 1, 5)
    for _ in range(6):
        step(scheduler)
    scheduler.finish(before, Finish("length"))
    account = scheduler.ledger.accounts[1]
    pages = list(account.groups[0].pages)
    for rid, steps in enumerate((1, 2, 3, 1, 1), 2):
        request = turn(scheduler, rid, [*before.tokens, 50, 51], account=1)
        for number in range(steps):
            # Draft KV of the last positions is that of other tokens, so every turn computes it again.
            assert step(scheduler).rows[0].start == 4 + number and request.inherited == 7
        if how == "retract":
            scheduler.retract(request)
            scheduler.check()
            assert account.held and account.committed == 7
        if how == "error":
            scheduler.finish(request, Finish("error", message="a drafter's"))
        else:
            assert scheduler.abort(rid)
        scheduler.check()
        assert (account.committed, account.groups[0].pages, account.held) == (7, pages, True)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_retracted_turn_frees_its_own_part_and_returns_to_what_it_inherited(rounds):
    scheduler = scheduler_of(span=1)
    before = first_turn(scheduler)
    pages = list(scheduler.ledger.accounts[1].groups[0].pages)
    request = turn(scheduler, 2, [*before.tokens, 50, 51], account=1)
    for _ in range(rounds + 1):
        step(scheduler)
    scheduler.retract(request)
    scheduler.check()
    account = scheduler.ledger.accounts[1]
    assert (account.committed, account.groups[0].pages, account.held) == (7, pages, True)
    assert request.phase is Phase.WAITING
    (row,) = step(scheduler).rows
    assert (row.start, row.account, request.inherited, request.cached_tokens) == (6, 1, 7, 6)
    assert row.tokens == (*request.prompt, *[7] * (1 + 2 * rounds))[6:]
    counts = scheduler.counters.counts
    assert [counts[f"session.{name}"] for name in ("spared", "restored", "rolled_back")] == [1, 1, 0]
    scheduler.finish(request, Finish("length"))
    assert scheduler.ledger.accounts[1].committed == request.num_tokens - 1


def test_what_a_retracted_turn_spared_goes_before_anybody_else_is_retracted():
    scheduler = scheduler_of(pages=24, size=1)
    before = first_turn(scheduler, tokens=4, new=6)  # 6 positions
    old = turn(scheduler, 2, 1, holds=False, new=20)
    request = turn(scheduler, 3, [*before.tokens, 50], account=1, new=12)
    step(scheduler)
    while not request.retractions:
        step(scheduler)
    assert scheduler.ledger.accounts[1].held and old.phase is Phase.RUNNING
    while len(scheduler.held):
        step(scheduler)
    counts = scheduler.counters.counts
    assert (counts["retract.done"], counts["session.spared"], counts["session.dropped"]) == (1, 1, 1)
    scheduler.finish(old, Finish("length"))
    (row,) = step(scheduler).rows
    assert (row.rid, row.start, request.inherited, counts["session.restored"]) == (3, 0, 0, 0)


def test_a_retracted_turn_keeps_nothing_once_its_window_slid():
    for window, held in (((40, 4), False), ((40, 4, 9), True)):
        scheduler = scheduler_of(window=window)
        before = first_turn(scheduler)
        request = turn(scheduler, 2, [*before.tokens, *range(9)], account=1)
        step(scheduler)
        scheduler.retract(request)
        scheduler.check()
        assert (len(scheduler.held) == 1) == held and scheduler.counters.counts["session.spared"] == held


def test_idle_sessions_are_dropped_longest_unused_first_before_anybody_is_retracted():
    scheduler = scheduler_of(pages=16)
    first = first_turn(scheduler, 1)
    first_turn(scheduler, 2)
    again = turn(scheduler, 3, [*first.tokens, 9], account=1)
    step(scheduler)
    scheduler.finish(again, Finish("length"))
    assert list(scheduler.held.order) == [2, 1]
    plain = turn(scheduler, 4, 17, holds=False, new=12)
    step(scheduler)
    assert plain.phase is Phase.RUNNING and list(scheduler.held.order) == [1]
    for _ in range(2):
        step(scheduler, accepted=3)
    counts = scheduler.counters.counts
    assert not scheduler.held and (counts["session.dropped"], counts["retract.done"]) == (2, 0)


def test_the_session_of_a_queued_turn_is_dropped_last_and_its_turn_computes_the_history():
    scheduler = scheduler_of(pages=16, rows=1)
    one, two = first_turn(scheduler, 1), first_turn(scheduler, 2)
    plain = turn(scheduler, 3, 12, holds=False, new=14)
    later = turn(scheduler, 4, [*one.tokens, 9], account=1)
    for _ in range(3):
        step(scheduler, accepted=3)
    assert plain.phase is Phase.RUNNING and list(scheduler.held.order) == [1] and two.rid == 2
    for _ in range(3):
        step(scheduler, accepted=3)
    assert not scheduler.held and scheduler.counters.counts["retract.done"] == 0
    scheduler.finish(plain, Finish("length"))
    (row,) = step(scheduler).rows
    assert (row.rid, row.start, later.inherited) == (4, 0, 0)


def test_a_turn_that_needs_every_page_evicts_other_sessions_but_not_its_own():
    scheduler = scheduler_of(pages=16)
    one = first_turn(scheduler, 1, tokens=9)
    first_turn(scheduler, 2)
    turn(scheduler, 3, [*one.tokens, *range(11)], account=1, new=5)
    (row,) = step(scheduler).rows
    assert row.start == 11 and scheduler.counters.counts["session.dropped"] == 1


def test_cached_pages_that_only_sessions_use_count_as_room():
    scheduler = scheduler_of(pages=16, cache=True)
    first_turn(scheduler, 1, tokens=12, new=5)
    assert scheduler.ledger.accounts[1].groups[0].shared == 6
    assert scheduler.held.droppable(0, 0, ()) == 7 and scheduler.held.droppable(0, 1, ()) == 0
    assert scheduler.held.droppable(0, 0, scheduler.ledger.accounts[1].groups[0].pages[:2]) == 5
    turn(scheduler, 2, 25, holds=False, new=4)
    (row,) = step(scheduler).rows
    assert row.rid == 2 and len(row.pages[0][1]) == 13 and not scheduler.held
    assert scheduler.counters.counts["prefix.evict"] > 0


def test_held_window_pages_are_given_up_for_a_peak():
    scheduler = scheduler_of(window=(11, 4), chunk=9)
    first_turn(scheduler, 1)
    first_turn(scheduler, 2)
    assert scheduler.held.droppable(1, 0, ()) == 4
    turn(scheduler, 3, 9, holds=False)
    assert step(scheduler).rows[0].rid == 3
    assert list(scheduler.held.order) == [2] and scheduler.counters.counts["session.dropped"] == 1


def test_an_account_without_a_user_or_with_two_is_a_bug():
    ledger = Ledger(FullAttention(8, 2))
    held = SessionKV(ledger, Counters())
    ledger.open(1)
    held.check([1])
    with pytest.raises(LedgerError, match=r"^accounts \[1\] are open, but \[\] are in use or held$"):
        held.check([])
    with pytest.raises(LedgerError, match=r"^accounts \[1\] are open, but \[1, 1\] are in use or held$"):
        held.check([1, 1])
    ledger.accounts[1].held = True
    with pytest.raises(LedgerError, match=r"^account 1 is held, but its session says otherwise$"):
        held.check([1])
    ledger.accounts[1].held = False
    held.order[1] = None
    with pytest.raises(LedgerError, match=r"^account 1 is in use, but its session says otherwise$"):
        held.check([])
