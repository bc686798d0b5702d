"""Adaptive steps end to end on the zoo's models: the depth changes at both timings, the tokens do not."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.cuda_graphs import CudaGraphs, padded
from specmatrix.errors import ConfigError

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = tuple(
    f"Question: {name} has {many} {things} and buys {more}. How many {things} has {name}?\nAnswer:"
    for things in ("pens", "coins", "pears", "books")
    for name, many, more in (("Ann", 3, 4), ("Bo", 17, 25), ("Cy", 40, 9), ("Di", 8, 61))
    for many in (many, many + 30)
)
# Every second round decides, on half of its own mean: slots move within a few rounds.
QUICK = {
    "ema_alpha": 0.5,
    "update_interval": 2,
    "warmup_batches": 2,
    "1": {"candidate_steps": [1, 3, 7]},
    "8": {"candidate_steps": [1, 2, 5], "down_hysteresis": 0},
    "32": {"candidate_steps": [1]},
}
# Lengths of the first request, of those that make eight of it, and of those that make thirty-two.
LENGTHS = (90, *(44,) * 7, *(8,) * 24)


def start_engine(version="v2", algorithm="EAGLE3", config: object = QUICK, target="llama-mini", **more: object) -> LLM:
    asked: dict[str, Any] = {"context_length": 256, "max_total_tokens": 3201, "strict_memory": 1, "kv_stamps": True}
    if algorithm != "NONE":
        if algorithm != "NEXTN":
            asked["speculative_draft_model_path"] = f"{target}-{algorithm.lower()}"
        asked["speculative_adaptive"] = True
        asked["speculative_adaptive_config"] = json.dumps(config) if isinstance(config, dict) else config
    asked |= {"spec_version": version, "page_size": 3, "enable_deterministic_inference": True} | more
    return LLM(EngineConfig(target, algorithm, **asked), lambda name: ZOO / name)


def params(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, ignore_eos=True)


def rising_and_falling(llm: LLM) -> list[tuple[int, ...]]:
    """Batches of 1, 8, 32, 8 and 1: more requests join while the first ones run, the later ones end first."""
    rids = []
    for upto in (1, 8, 32):
        while len(rids) < upto:
            rids.append(llm.add(PROMPTS[len(rids)], params(LENGTHS[len(rids)])))
        for _ in range(6 if upto < 32 else 10_000):
            if not llm.step():
                break
    return [llm.take(rid).output_ids for rid in rids]


@cache
def plain() -> tuple[tuple[int, ...], ...]:
    """Each request alone, without a drafter."""
    llm = start_engine("v1", "NONE", disable_radix_cache=True)
    outputs = (llm.generate([prompt], params(n))[0] for prompt, n in zip(PROMPTS, LENGTHS, strict=True))
    return tuple(out.output_ids for out in outputs)


def at_rest(llm: LLM) -> None:
    """Nothing is held, every page is free or cached, the journal replays, every stamp was right."""
    ledger = llm.loop.scheduler.ledger
    assert not ledger.accounts and not ledger.counts.held
    replay(llm.journal)
    assert llm.counters["stamp.checked"] > 0 and llm.counters["stamp.wrong"] == 0


def test_poor_drafts_lower_the_depth():
    llm = start_engine(
        config={"1": {"candidate_steps": [1, 5], "ema_alpha": 0.5, "update_interval": 1, "warmup_batches": 1}}
    )
    hot = SamplingParams(max_new_tokens=60, temperature=2.0, seed=3, ignore_eos=True)
    assert llm.readback()["adaptive"]["steps"] == 5
    (out,) = llm.generate(PROMPTS[:1], hot)
    none = start_engine("v1", "NONE", disable_radix_cache=True)
    assert out.output_ids == none.generate(PROMPTS[:1], hot)[0].output_ids
    assert llm.readback()["adaptive"]["steps"] == 1 and llm.counters["adaptive.switched_down"] > 0
    at_rest(llm)


def test_the_engine_runs_the_resolved_configuration(tmp_path):
    file = tmp_path / "slots.json"
    file.write_text(json.dumps(QUICK), encoding="utf-8")
    llm = start_engine(config=str(file), speculative_num_steps=5)
    resolved, back = llm.resolved.as_dict(), llm.readback()
    state = back.pop("adaptive")
    assert not any(back.pop("alive").values())
    assert back.pop("workers")
    del back["row_invariant_matmul"]  # what this machine's products need is not resolved
    assert {key: resolved[key] for key in back} == back
    assert (back["num_steps"], back["num_draft_tokens"]) == (5, 6)
    assert [slot["batch_from"] for slot in back["adaptive_slots"]] == [1, 8, 32]
    assert back["adaptive_slots"][0]["ema_alpha"] == 0.5
    # 5 is a candidate of the second slot only; the first one begins in its middle.
    assert state == {"steps": 3, "activated": 0, "rounds": [], "trace": []}
    assert [slot.steps for slot in llm.loop.scheduler.steps.slots] == [3, 5, 1]


def test_a_static_depth_reads_back_no_slots():
    back = start_engine(algorithm="NONE").readback()
    assert back["adaptive_slots"] == [] and "adaptive" not in back


def test_a_drafter_that_cannot_adapt_runs_statically_with_a_rewrite():
    llm = start_engine(algorithm="STANDALONE", max_total_tokens=399)
    (rewrite,) = llm.resolved.rewrites
    assert (rewrite.field, rewrite.asked, rewrite.got) == ("speculative_adaptive", True, False)
    assert rewrite.reason == "STANDALONE cannot change its draft depth, so the depth is static"
    assert llm.generate(PROMPTS[:1], params(9))[0].output_ids == plain()[0][:9]
    assert llm.readback()["adaptive_slots"] == [] and llm.counters["adaptive.activated"] == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "cannot be read (No such file or directory); pass a JSON file"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory); pass a JSON file"),
        (lambda path: path.write_bytes(b"\xff{}"), "cannot be read (it is not UTF-8 text); pass a JSON file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, make, sentence):
    path = tmp_path / "slots.json"
    make(path)
    with pytest.raises(ConfigError, match=re.escape(f"speculative_adaptive_config {path} {sentence}")):
        start_engine(config=str(path))


def test_a_wrong_file_is_refused_with_its_mistake(tmp_path):
    path = tmp_path / "slots.json"
    path.write_text('{"8": {"candidate_steps": [0]}}', encoding="utf-8")
    wanted = (
        f"speculative_adaptive_config {path}: slot 8: "
        "candidate_steps must be a list of one or more integers from 1 to 255"
    )
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        start_engine(config=str(path))


def test_a_depths_bundle_holds_the_batches_of_the_slots_that_reach_it():
    llm = start_engine()
    executor = llm.loop.executor
    executor.run.graphs = CudaGraphs(32, torch.device("cpu"), llm.loop.counters)
    assert rising_and_falling(llm) == rising_and_falling(start_engine())
    reached = {(padded(batch), width) for batch, width in llm.loop.scheduler.steps.rounds}
    bundles = dict(executor.graphs.bundles)
    assert {(one.batch, width) for width, bundle in bundles.items() for one in bundle.graphs} == reached
    assert {one.width for width, bundle in bundles.items() for one in bundle.graphs if one.width != width} == set()
    assert len(bundles) > 2 and max(one.batch for one in bundles[8].graphs) < 8
