"""The engine over two processes as a subject: what it shows, and the error for ranks that differ."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.engine.parallel.group import RanksDiverged, end_idle_group
from specmatrix.errors import ConfigError, EngineError
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects import tensor_parallel
from specmatrix.matrix.subjects.in_process import ReferenceEngine
from specmatrix.matrix.subjects.protocol import Diverged
from specmatrix.matrix.subjects.tensor_parallel import RankedEngine, RankedSubject
from specmatrix.matrix.workloads.request import RequestSpec

PROMPT = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"
CELL = Cell.from_id("eagle3.tp2.s3.k4.n8.v2.p16.mixed_lengths")


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


@pytest.mark.nightly
def test_an_engine_of_two_ranks_shows_what_one_process_does():
    config = asked(CELL)
    one = RankedSubject().start_engine(asked(CELL._replace(tp="1")))
    two = RankedSubject().start_engine(config)
    assert isinstance(one, ReferenceEngine) and isinstance(two, RankedEngine)
    requests = [
        RequestSpec("a", PROMPT, 12, ignore_eos=True, top_logprobs=2),
        RequestSpec("b", PROMPT + " Now", 9, abort_after=4),
    ]
    first, second = one.generate(requests), two.generate(requests)
    assert [a.output_ids for a in first] == [a.output_ids for a in second]
    assert first[0].logprobs == pytest.approx(second[0].logprobs, abs=1e-4)
    assert one.memory() == two.memory()
    assert one.journal() == two.journal()
    counts = {name: count for name, count in two.counters().items() if name != "rank.step"}
    assert counts == {name: count for name, count in one.counters().items() if name != "rank.step"}
    found = dict(two.readback())
    assert [rank["tp_size"] for rank in found.pop("ranks")] == [2, 2]
    # Each process measures its own.
    form = "row_invariant_matmul"
    assert found == {**one.readback(), "tp_size": 2, form: found[form]}
    assert one.ranks() is None and one.trace() is two.trace() is None
    agreement = two.ranks()
    assert agreement is not None and agreement.divergence is None and agreement.planned == agreement.read >= 4
    assert two.resolved["tp_size"] == 2 and two.start_hash != one.start_hash
    ranks = two.group
    two.close()
    three = RankedSubject().start_engine(config)
    assert isinstance(three, RankedEngine) and three.group is ranks
    two.close()
    with pytest.raises(EngineError, match=r"^this engine is closed; start another one$"):
        two.generate(requests)
    assert [a.output_ids for a in three.generate(requests)] == [a.output_ids for a in first]
    three.close()


def test_ranks_that_differ_say_how_far_they_agreed_and_are_given_back(monkeypatch):
    agreement, closed = Agreement(2, 3, 3, ("a", "b"), "step 1: the ledger journal of rank 1"), []

    def call(*given: object):
        raise RanksDiverged(agreement)

    lease = SimpleNamespace(group=SimpleNamespace(call=call), close=lambda: closed.append(True))
    monkeypatch.setattr(tensor_parallel, "GroupLease", lambda *given: lease)
    with pytest.raises(Diverged) as found:
        RankedSubject().start_engine(asked(CELL))
    assert found.value.agreement == agreement and closed


def test_a_refused_configuration_starts_no_process():
    cell = Cell.from_id("eagle3.qwen3.tp2.s3.nocache.pair")
    with pytest.raises(ConfigError, match=r"^tp_size 2 cannot split a target with 3 key-value heads"):
        RankedSubject().start_engine(asked(cell))
    assert Runner(RankedSubject(), seed=0).run_cell(cell).state == "PASS"
