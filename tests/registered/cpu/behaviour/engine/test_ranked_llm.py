"""An engine over several ranks answers as one engine, and its ranks are spare again when it is closed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device import grammar_masks
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.group import GroupLease, RankLost, end_idle_group
from specmatrix.engine.parallel.worker import Rank
from specmatrix.errors import ConfigError, EngineError, RequestError
from specmatrix.matrix.zoo.registry import resolve_path
from tests.support.rank_calls import InterruptedWaits, echo, os_of

AWAITED, RELEASED = threading.Event(), threading.Event()
PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=12)
TWO = EngineConfig("llama-mini", "EAGLE3", "llama-mini-eagle3", tp_size=2, page_size=4)


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


@pytest.mark.nightly
def test_an_interrupted_engine_drops_running_requests_and_continues(monkeypatch):
    with RankedLLM(TWO, resolve_path) as llm:
        expected = [output.output_ids for output in llm.generate(PROMPTS, PARAMS)]
        for moment in (0, 1, 2, 3, 7, 16):
            monkeypatch.setattr("specmatrix.engine.parallel.group.wait", InterruptedWaits(moment))
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, PARAMS)
            assert llm.call_ranks(left_on_ranks) == (0, 0)
            monkeypatch.setattr("specmatrix.engine.parallel.group.wait", InterruptedWaits(moment))
            with pytest.raises(KeyboardInterrupt):
                list(llm.stream(PROMPTS[0], PARAMS))
            assert llm.call_ranks(left_on_ranks) == (0, 0)
        monkeypatch.undo()
        assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.group.agreement.divergence is None
        assert llm.health == "ok"
        llm.group.processes[1].kill()
        with pytest.raises(RankLost):
            llm.generate(PROMPTS, PARAMS)
        assert llm.health.startswith("broken: rank 1 of 2 died with exit code -9")


def with_limit(rank: Rank, seconds: float) -> None:
    if rank.place.rank == 0:
        grammar_masks.MASK_SECONDS = seconds


def shared(rank: Rank, error: bool) -> list[int]:
    def mine() -> int:
        if error:
            raise RequestError(f"rank {rank.place.rank} refuses")
        return rank.place.rank

    ranks = rank.ranks(ordered=True)
    return [int(part) for part in ranks.parts(torch.tensor([ranks.shared(mine)]))]


def test_rank_0_compiles_grammars_and_masks_for_all():
    """So that no rank's clock decides for itself which grammar is too slow."""
    nested = SamplingParams(max_new_tokens=20, ebnf='root ::= " " group\ngroup ::= "(" group ")" | [a-z ]+')
    asked = [nested, SamplingParams(max_new_tokens=20, regex=r" The [a-z ]+\."), PARAMS]
    one = LLM(replace(TWO, tp_size=1), resolve_path)
    expected = [output.output_ids for output in one.generate([PROMPTS[0]] * 3, asked)]
    with RankedLLM(TWO, resolve_path) as llm:
        assert [output.output_ids for output in llm.generate([PROMPTS[0]] * 3, asked)] == expected
        try:
            llm.call_ranks(with_limit, -1.0)
            slow, *others = llm.generate([PROMPTS[0]] * 3, asked)
        finally:
            llm.call_ranks(with_limit, grammar_masks.MASK_SECONDS)
        assert (slow.finish.reason, slow.output_ids) == ("error", ())
        assert [output.output_ids for output in others] == expected[1:]
        assert llm.call_ranks(shared, False) == [0, 0]
        with pytest.raises(RequestError, match=r"^rank 0 refuses$"):
            llm.call_ranks(shared, True)
        with pytest.raises(RequestError, match=r"^regex is '\['; allowed: a grammar that xgrammar compiles"):
            llm.generate(PROMPTS, SamplingParams(regex="["))
        assert llm.health == "ok"


@pytest.mark.nightly
def test_no_other_thread_comes_between_the_calls_of_a_generation(monkeypatch):
    with RankedLLM(TWO, resolve_path) as llm:
        expected, call = llm.generate(PROMPTS, PARAMS), llm.call_ranks

        def paused(*arguments: object) -> object:
            AWAITED.set()
            assert RELEASED.wait(30)
            return call(*arguments)

        AWAITED.clear(), RELEASED.clear()
        monkeypatch.setattr(llm, "call_ranks", paused)
        answers: list[list[Output]] = []
        first = threading.Thread(target=lambda: answers.append(llm.generate(PROMPTS, PARAMS)))
        first.start()
        assert AWAITED.wait(30)
        for second in (lambda: llm.generate(PROMPTS), lambda: call(left_on_ranks), llm.close):
            with pytest.raises(EngineError, match=r"^another thread is calling this engine; make one call "):
                second()
        RELEASED.set()
        first.join()
        assert [o.output_ids for o in answers[0]] == [o.output_ids for o in expected]


@pytest.mark.nightly
def test_a_closed_engine_is_closed_once_and_for_good():
    """Its ranks serve a new engine by then, which a second close must not affect."""
    first = RankedLLM(TWO, resolve_path)
    reader = first.stream(PROMPTS[0], PARAMS)
    next(reader)
    ranks = first.group
    first.close()
    with RankedLLM(TWO, resolve_path) as second:
        assert second.group is ranks
        expected = second.generate(PROMPTS, PARAMS)[0].output_ids
        first.close()
        for use in (lambda: first.generate(PROMPTS), lambda: next(reader), first.readback, lambda: first.counters):
            with pytest.raises(EngineError, match=r"^this engine is closed; start another one$"):
                use()
        other = GroupLease(2, "cpu", 50.0)
        assert other.group is not ranks and other.group.patience == 50.0
        assert second.generate(PROMPTS, PARAMS)[0].output_ids == expected
        other.close()
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: they were closed$"):
        ranks.call(os_of)  # one spare group is enough


def test_a_start_that_fails_on_the_ranks_leaves_them_spare():
    before = GroupLease(2, "cpu")
    ranks = before.group
    before.close()
    with pytest.raises(ConfigError, match=r"^refused on the ranks$"):
        RankedLLM(TWO, refuse_elsewhere)
    spare = GroupLease(2, "cpu")
    assert spare.group is ranks and ranks.call(echo, 3) == 3
    spare.close()


@pytest.mark.nightly
def test_patience_counts_from_the_start_of_the_ranks():
    end_idle_group()
    with pytest.raises(RankLost, match=r"^rank 0 and rank 1 of 2 were silent for 0\.01 s\n"):
        GroupLease(2, "cpu", 0.01)


@pytest.mark.nightly
def test_a_spare_group_that_lost_a_rank_serves_no_engine():
    spare = GroupLease(2, "cpu")
    processes = spare.group.processes
    spare.close()
    victim = processes[1]
    victim.kill()
    victim.wait(10)
    fresh = GroupLease(2, "cpu")
    assert fresh.group.processes is not processes and fresh.group.call(os_of) == fresh.group.processes[0].pid
    fresh.close()


def test_a_start_that_cannot_run_starts_no_rank(monkeypatch):
    monkeypatch.setattr("specmatrix.engine.parallel.group.start", None)
    with pytest.raises(ConfigError, match=r"^tp_size 2 cannot split a target with 3 key-value heads"):
        RankedLLM(EngineConfig("qwen3-mini", tp_size=2), resolve_path)


def test_one_process_is_no_engine_of_two_ranks():
    said = "^tp_size 2 needs one process per rank, and LLM runs in one process; use RankedLLM from specmatrix.engine."
    with pytest.raises(ConfigError, match=said):
        LLM(EngineConfig("llama-mini", tp_size=2), resolve_path)


def left_on_ranks(rank: Rank) -> tuple[int, int]:
    """The number of generations and streams that a rank holds, and of its requests."""
    return len(rank.held.running), len(rank.held.llm.loop.scheduler.requests)


def refuse_elsewhere(name: str) -> Path:
    """Refuses on the ranks only, as their machine may."""
    if Path(sys.argv[0]).name == "child.py":
        raise ConfigError("refused on the ranks")
    return resolve_path(name)
