"""Records of ranks compared in order, whoever tells first."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.counters import Counters
from specmatrix.engine.core.observe.rank_agreement import PLAN, RESULT, RankComparison, StepDigest, digest
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.rank_digest import RankDigest

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

A, B, C = StepDigest(PLAN, ("j1", "p1")), StepDigest(RESULT, ("t1", "d1", "v1")), StepDigest(PLAN, ("j2", "p2"))


def told(*ranks: list[StepDigest]) -> RankComparison:
    found = RankComparison(len(ranks))
    for rank, records in enumerate(ranks):
        for record in records:
            found.add(rank, record)
    return found


def test_ranks_that_tell_the_same_agree():
    found = told([A, B, C], [A, B, C], [A, B, C])
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
    found = told([A, B, C], [other, B, C])
    assert found.divergence == sentence
    assert (found.agreement.planned, found.agreement.read) == (1, 0)
    assert len(set(found.agreement.digests)) == 2


def test_a_difference_in_what_was_read():
    found = told([A, B], [A, StepDigest(RESULT, ("t1", "other", "v1"))])
    assert found.divergence == "step 1: the draft tokens of rank 1 and of rank 0 differ"


def test_nothing_is_compared_before_all_have_told_it():
    found = told([A, B, C], [A])
    assert found.divergence is None and (found.agreement.planned, found.agreement.read) == (1, 0)
    found.check_complete()
    assert found.divergence == "the ranks stopped after different numbers of steps: 3, 1"


def test_a_plan_is_told_with_a_digest_of_the_whole_journal_in_its_order():
    told: list[list[StepDigest]] = []
    for rids in ((1, 2), (1, 2), (2, 1)):
        ledger, mine = Ledger(4, 2), []
        ledger.open(9)
        witness = RankDigest(ledger, mine.append, Counters())
        for rid in rids:
            ledger.open(rid)
            witness.planned(StepPlan(prefill=True, rows=(), greedy=True), in_flight=0)
        told.append(mine)
    assert told[0] == told[1] and [record.parts for record in told[0]] == [PLAN, PLAN]
    assert len({record.digests[0] for mine in told for record in mine}) == 4
    assert digest((1, "a")) == digest((1, "a")) != digest((1, "b"))
