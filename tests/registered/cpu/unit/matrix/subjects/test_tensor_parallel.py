"""The engine over two processes as a subject: its capabilities, and the records of its cells when ranks fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.parallel.group import end_idle_group
from specmatrix.errors import ConfigError, EngineError
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceEngine
from specmatrix.matrix.subjects.protocol import RunningEngine
from specmatrix.matrix.subjects.tensor_parallel import RankedEngine, RankedSubject
from specmatrix.matrix.workloads.request import RequestSpec

PROMPT = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"
CELL = Cell.from_id("eagle3.tp2.s3.k4.n8.v2.p16.mixed_lengths")


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


class Signalled(RankedSubject):
    """Sends a signal to rank 1 of every engine of several ranks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def start_engine(self, config: EngineConfig) -> RunningEngine:
        engine = super().start_engine(config)
        if isinstance(engine, RankedEngine):
            engine.group.patience = 3.0
            os.kill(engine.group.processes[1].pid, self.number)
        return engine


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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "RankLost: rank 1 of 2 died with exit code -9\nlog of rank 1:"),
        (signal.SIGSTOP, "RankLost: rank 1 of 2 was silent for 3 s\nlog of rank 1:"),
    ],
)
def test_a_rank_that_is_killed_or_hangs_makes_its_cell_infra(number: int, said: str):
    runner = Runner(Signalled(number), seed=0)
    record = runner.run_cell(CELL)
    assert record.state == "INFRA" and record.error is not None and record.error.startswith(said)
    assert record.gates == ()
    assert runner.run_cell(Cell.from_id("none")).state == "PASS", "the next cell has its own engine"
    runner.close()


@pytest.mark.nightly
def test_a_rank_that_does_otherwise_makes_the_gate_red():
    class Parted(RankedSubject):
        def start_engine(self, config: EngineConfig) -> RunningEngine:
            engine = super().start_engine(config)
            if isinstance(engine, RankedEngine):
                engine.group.call(part)
            return engine

    runner = Runner(Parted(), seed=0)
    record = runner.run_cell(CELL)
    assert record.state == "FAIL"
    (gate,) = record.gates
    assert (gate.name, gate.state) == ("ranks", "FAIL")
    assert gate.message is not None and gate.message.startswith("step 1: the ledger journal of rank 1")
    runner.close()


def test_a_refused_configuration_starts_no_process():
    cell = Cell.from_id("eagle3.qwen3.tp2.s3.nocache.pair")
    with pytest.raises(ConfigError, match=r"^tp_size 2 cannot split a target with 3 key-value heads"):
        RankedSubject().start_engine(asked(cell))
    assert Runner(RankedSubject(), seed=0).run_cell(cell).state == "PASS"


def part(rank) -> None:
    """Rank 1 allocates its pages in a different order."""
    if rank.place.rank:
        rank.held.llm.loop.scheduler.ledger.groups[0].free.reverse()
