"""Records of ranks are compared in step order, not in the order of arrival."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.rank_agreement import PLAN, RESULT, RankComparison, StepDigest, digest
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device_step import RankDigest

A, B, C = StepDigest(PLAN, ("j1", "p1")), StepDigest(RESULT, ("t1", "d1", "v1")), StepDigest(PLAN, ("j2", "p2"))


def compared(*ranks: list[StepDigest]) -> RankComparison:
    found = RankComparison(len(ranks))
    for rank, records in enumerate(ranks):
        for record in records:
            found.add(rank, record)
    return found


def test_ranks_with_equal_records_agree():
    found = compared([A, B, C], [A, B, C], [A, B, C])
    found.check_complete()
    agreement = found.agreement
    assert (agreement.ranks, agreement.planned, agreement.read, agreement.divergence) == (3, 2, 1, None)
    assert len(set(agreement.digests)) == 1


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (StepDigest(PLAN, ("j1", "other")), "step 1: the plan of rank 1 and of rank 0 differ"),
        (StepDigest(PLAN, ("other", "p1")), "step 1: the ledger journal of rank 1 and of rank 0 differ"),
        (B, "step 1: rank 0 published its ledger journal where rank 1 published its accepted tokens"),
    ],
)
def test_the_first_difference_is_named(other: StepDigest, sentence: str):
    found = compared([A, B, C], [other, B, C])
    assert found.divergence == sentence
    assert (found.agreement.planned, found.agreement.read) == (1, 0)
    assert len(set(found.agreement.digests)) == 2


def test_a_difference_between_results():
    found = compared([A, B], [A, StepDigest(RESULT, ("t1", "other", "v1"))])
    assert found.divergence == "step 1: the draft tokens of rank 1 and of rank 0 differ"


def test_nothing_is_compared_before_all_have_published_it():
    found = compared([A, B, C], [A])
    assert found.divergence is None and (found.agreement.planned, found.agreement.read) == (1, 0)
    found.check_complete()
    assert found.divergence == "the ranks stopped after different numbers of steps: 3, 1"


def test_a_plan_is_published_with_a_digest_of_the_whole_journal_in_its_order():
    published: list[list[StepDigest]] = []
    for rids in ((1, 2), (1, 2), (2, 1)):
        ledger, mine = Ledger(FullAttention(4, 2)), []
        ledger.open(9)
        observer = RankDigest(ledger, mine.append, Counters())
        for rid in rids:
            ledger.open(rid)
            observer.planned(StepPlan(prefill=True, rows=(), greedy=True), in_flight=0)
        published.append(mine)
    assert published[0] == published[1] and [record.parts for record in published[0]] == [PLAN, PLAN]
    assert len({record.digests[0] for mine in published for record in mine}) == 4
    assert digest((1, "a")) == digest((1, "a")) != digest((1, "b"))
