"""Ranks as processes: they answer as one, and a rank that dies, hangs or leaves the others ends all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from engine.api import LLM
from engine.core.agreement import Told
from engine.core.config import EngineConfig
from engine.core.errors import ConfigError, RequestError
from engine.core.request import SamplingParams
from engine.core.session import SessionParams
from engine.ranks.group import RankGroup, RankLost, RanksDiverged
from engine.ranks.llm import RankedLLM
from engine.ranks.process import Rank
from engine.ranks.spare import end_spare, give_back, lend
from matrix.zoo.registry import resolve_path

pytestmark = pytest.mark.register(est_seconds=25, tier="cpu", stage="pr")

PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=12)
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}


@pytest.fixture
def group() -> Iterator[RankGroup]:
    """Two ranks that are not kept."""
    found = lend(2, "cpu")
    yield found
    found.close()


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_spare()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_call_runs_on_every_rank_and_rank_0_answers(group: RankGroup):
    assert group.call(os_of) == group.processes[0].pid
    with pytest.raises(RequestError, match=r"^all of them$"):
        group.call(refuse)
    assert group.call(os_of) == group.processes[0].pid, "a refusal ends nobody"


def test_what_one_rank_raises_ends_all(group: RankGroup):
    with pytest.raises(ZeroDivisionError) as caught:
        group.call(divide)
    assert caught.value.__notes__ == ["raised on rank 1 of 2"]
    assert not group.alive and not any(alive(process.pid) for process in group.processes)


def test_a_dead_rank_is_lost_with_its_log(group: RankGroup):
    with pytest.raises(RankLost) as caught:
        group.call(die)
    assert str(caught.value).startswith("rank 1 of 2 died with exit code -9\nlog of rank 1:\n")
    assert "the last words of rank 1" in str(caught.value)


def test_a_rank_that_hangs_is_lost_with_where_it_was(group: RankGroup):
    group.patience = 1.5
    begun = time.monotonic()
    with pytest.raises(RankLost) as caught:
        group.call(hang)
    assert time.monotonic() - begun < 10
    assert str(caught.value).startswith("rank 1 of 2 was silent for 1.5 s\nlog of rank 1:\n")
    assert "in hang" in str(caught.value), "the traceback of the rank that hangs"


def test_ranks_that_differ_are_ended_before_they_wait_for_each_other(group: RankGroup):
    with pytest.raises(RanksDiverged, match=r"^step 1: the plan of rank 1 and that of rank 0 differ$") as caught:
        group.call(differ)
    assert (caught.value.agreement.ranks, caught.value.agreement.planned) == (2, 1)
    assert not group.alive


def test_ranks_end_with_who_called(group: RankGroup):
    (stdin,) = [group.processes[1].stdin]
    assert stdin is not None
    stdin.close()
    assert group.processes[1].wait(10) == 1


def test_one_engine_over_two_ranks_says_what_one_rank_says():
    config = EngineConfig(
        "llama-mini", "EAGLE3", "llama-mini-eagle3", page_size=4, enable_streaming_session=True, **TREE
    )
    one = LLM(config, resolve_path)
    two = RankedLLM(EngineConfig(**{**values(config), "tp_size": 2}), resolve_path)
    assert [o.output_ids for o in two.generate(PROMPTS, PARAMS)] == [
        o.output_ids for o in one.generate(PROMPTS, PARAMS)
    ]
    shown = two.readback()
    assert (shown["tp_size"], one.readback()["tp_size"]) == (2, 1)
    assert two.probes["rank.step"] > 1 and not one.probes["rank.step"]
    assert two.probes["spec.accepted"] == one.probes["spec.accepted"] > 0
    agreement = two.group.agreement
    assert agreement.divergence is None and agreement.planned == agreement.read == two.probes["rank.step"]
    assert len(set(agreement.digests)) == 1
    session = two.open_session(1000, streaming=True)
    turns = [two.generate([text], PARAMS, SessionParams(session))[0] for text in (PROMPTS[0], " And then?")]
    two.close_session(session)
    assert two.probes["session.inherited"] > 0 and len(turns[1].output_ids) == 12
    grown = one.generate(PROMPTS[:1], PARAMS)[0].text
    assert "".join(two.stream(PROMPTS[0], PARAMS)) == grown
    reader = two.stream(PROMPTS[0], PARAMS)
    assert grown.startswith(next(reader))
    reader.close()
    assert "".join(two.stream(PROMPTS[0], PARAMS)) == grown, "who stopped reading disturbs nobody"
    assert two.group.agreement.divergence is None and two.drafter_error is None
    with pytest.raises(RequestError, match="is not open"):
        two.generate(PROMPTS[:1], PARAMS, SessionParams(session))
    processes = two.group.processes
    two.close()
    spare = lend(2, "cpu")
    assert spare.processes is processes and spare.agreement.planned == 0
    give_back(spare)


def test_a_spare_group_that_lost_a_rank_serves_nobody():
    spare = lend(2, "cpu")
    give_back(spare)
    victim = spare.processes[1]
    victim.kill()
    victim.wait()
    fresh = lend(2, "cpu")
    assert fresh is not spare and fresh.call(os_of) == fresh.processes[0].pid
    give_back(fresh)


def test_a_launch_that_cannot_run_starts_nobody(monkeypatch):
    monkeypatch.setattr("engine.ranks.group.subprocess", None)
    with pytest.raises(ConfigError, match=r"^tp_size 2 cannot share a target with 3 key-value heads"):
        RankedLLM(EngineConfig("qwen3-mini", tp_size=2), resolve_path)


def test_one_process_is_no_engine_of_two_ranks():
    said = r"^tp_size 2 needs as many processes and LLM runs in one; use RankedLLM of engine\.ranks\.llm$"
    with pytest.raises(ConfigError, match=said):
        LLM(EngineConfig("llama-mini", tp_size=2), resolve_path)


def values(config: EngineConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def os_of(rank: Rank) -> int:
    return os.getpid()


def refuse(rank: Rank) -> None:
    raise RequestError("all of them")


def divide(rank: Rank) -> float:
    if rank.place.rank == 0:
        time.sleep(60)
    return 1 / 0


def die(rank: Rank) -> None:
    if rank.place.rank:
        print("the last words of rank 1", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def hang(rank: Rank) -> None:
    rank.tell(Told(("plan",), ("a",)))
    if rank.place.rank:
        time.sleep(60)
    rank.tell(Told(("result",), ("b",)))
    time.sleep(60)


def differ(rank: Rank) -> None:
    rank.tell(Told(("ledger journal", "plan"), ("a", str(rank.place.rank))))
    time.sleep(60)
