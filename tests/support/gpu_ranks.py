"""Tests of an engine over any number of ranks, each on its own GPU; the tier sets their number."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.group import RankGroup, RankLost, end_idle_group
from specmatrix.matrix.zoo.registry import resolve_path
from tests.support import rank_calls
from tests.support.rank_calls import LAST_WORDS, dies_in_a_round, hangs_in_a_round

PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)
DEVICE = "cuda"
# Seconds from a loss, or from the end of the patience with it, until every rank has ended.
ENDED_WITHIN = 10.0

LOSSES = pytest.mark.parametrize(
    ("leaves", "version", "how"),
    [
        (dies_in_a_round, "v1", "died with exit code -9"),
        (hangs_in_a_round, "v1", "were silent for 5 s"),
        (hangs_in_a_round, "v2", "was silent for 5 s"),
    ],
    ids=["killed", "hung", "hung-overlapped"],
)


def spare_ends() -> Iterator[None]:
    """A fixture: no group outlives the tests of a file."""
    yield
    end_idle_group()


def asked(**more: object) -> EngineConfig:
    """Trees of llama-mini in float32, with deterministic sums."""
    tree = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    exact = {"dtype": "float32", "enable_deterministic_inference": True}
    shape = {"page_size": 4, "max_running_requests": 4, "max_total_tokens": 512, "device": DEVICE}
    return EngineConfig("llama-mini", "EAGLE3", "llama-mini-eagle3", **{**tree, **exact, **shape, **more})


def said(llm: LLM | RankedLLM) -> list[tuple[int, ...]]:
    """The same answers four times; the rounds of the last are graph replays where graphs are on."""
    answers = [[output.output_ids for output in llm.generate(PROMPTS, PARAMS)] for _ in range(4)]
    assert answers[1:] == answers[:-1]
    return answers[0]


def check_homes(size: int) -> None:
    """Every tensor of a rank's engine lies on its own GPU, and the others hold no memory of it."""
    ranked = RankedLLM(asked(tp_size=size), resolve_path)
    said(ranked)
    assert ranked.group.call(rank_calls.at_home) > 40
    ranked.close()


def check_sums(size: int) -> None:
    """Sums through the ranks' memory have the bits of sums of gathered parts."""
    group = RankGroup(size, DEVICE)
    assert group.call(rank_calls.sums_through_peers) == 54
    group.close()


def check_tokens(size: int) -> None:
    """The tokens are those of one GPU, and rounds were graphs."""
    one, ranked = LLM(asked(), resolve_path), RankedLLM(asked(tp_size=size), resolve_path)
    assert said(ranked) == said(one)
    shown = ranked.counters
    assert shown["graph.replayed"] > shown["graph.eager"] > 0 < shown["spec.accepted"]
    agreement = ranked.group.agreement
    assert (agreement.ranks, agreement.divergence, len(set(agreement.digests))) == (size, None, 1)
    ranked.close()


def check_loss(size: int, leaves: Callable[..., object], version: str, how: str) -> None:
    """A rank that is lost within a round is named, all ranks end in time, and the next engine has their GPUs.

    Without overlap every rank has published the plan of that round and nothing after it, so that a rank that hangs and
    those that wait for it cannot be told apart: each is named with its stack.
    """
    ranked = RankedLLM(asked(tp_size=size, spec_version=version), resolve_path)
    expected = said(ranked)
    group, began = ranked.group, time.monotonic()
    group.patience = patience = 5.0 if leaves is hangs_in_a_round else 60.0
    with pytest.raises(RankLost) as caught:
        group.call(leaves, PROMPTS)
    took = time.monotonic() - began
    assert took < ENDED_WITHIN + (patience if leaves is hangs_in_a_round else 0)
    named = range(size) if how.startswith("were") else [size - 1]
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{' and '.join(f'rank {rank}' for rank in named)} of {size} {how}"
    logs = "\n".join(lines[1:]).split("log of ")[1:]
    assert [log.partition(":")[0] for log in logs] == [f"rank {rank}" for rank in named]
    assert LAST_WORDS in logs[-1]
    assert all(("in hangs_in_a_round" in log) == (leaves is hangs_in_a_round) for log in logs)
    check_ended(group)
    again = RankedLLM(asked(tp_size=size, spec_version=version), resolve_path)
    assert again.group is not group and said(again) == expected
    again.close()


def check_raise(size: int) -> None:
    """What a rank raises within a round is raised here, and all ranks end."""
    ranked = RankedLLM(asked(tp_size=size), resolve_path)
    said(ranked)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError) as caught:
        ranked.group.call(rank_calls.raises_in_a_round, PROMPTS)
    assert time.monotonic() - began < ENDED_WITHIN
    assert caught.value.__notes__[0].startswith(f"raised on rank {size - 1} of {size}\n")
    check_ended(ranked.group)


def check_ended(group: RankGroup) -> None:
    """No rank runs, and none is a zombie."""
    assert not group.alive
    for process in group.processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
