"""Memory that is released and taken again, and weights that are loaded from disk: answers and acceptance stay."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.life_cycle import TAGS
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.errors import ConfigError, RequestError
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.zoo.registry import resolve_path

CELL = "eagle3.s3.k4.n8.v2.p16"
PROMPTS = [
    "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:",
    "Question: Eli has 3",
]
GREEDY = SamplingParams(max_new_tokens=40)
RELEASED = "the engine's memory is released; allowed first: resume_memory_occupation"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(asked(Cell.from_id(CELL)), resolve_path)


def answers(llm: LLM | RankedLLM, prompts: Sequence[str] = PROMPTS) -> list[tuple[object, ...]]:
    return [(o.output_ids, o.accept_lengths, o.cached_tokens) for o in llm.generate(prompts, GREEDY)]


def other_weights(folder: Path, name: str = "llama-mini", change: float = -2.0) -> Path:
    """The same model with another share of one layer."""
    shutil.copytree(resolve_path(name), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"] *= change
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_memory_is_given_up_and_answers_stay(llm: LLM):
    before = answers(llm)
    assert sum(sum(lengths) for _, lengths, _ in before) > sum(len(lengths) for _, lengths, _ in before)
    executor = llm.loop.executor
    parts = (executor.target, executor.drafter.model, *executor.kv.full.pools, executor.relay)
    held = [weakref.ref(one) for one in parts]
    del executor, parts
    journal = len(llm.journal)
    llm.release_memory_occupation()
    assert [one() for one in held] == [None] * len(held)
    counts = llm.loop.scheduler.ledger.counts
    assert counts.free == counts.pages and len(llm.journal) > journal, "the cache is emptied, in the journal"
    assert (llm.released, llm.readback()["released"], llm.readback()["num_draft_tokens"]) == (True, True, 8)
    for call in (lambda: llm.generate(PROMPTS), lambda: llm.add("Question:"), lambda: next(llm.stream("Question:"))):
        with pytest.raises(RequestError, match=RELEASED):
            call()
    assert not llm.step() and llm.health == "ok"
    llm.resume_memory_occupation(list(TAGS))
    assert answers(llm) == before and "released" not in llm.readback()
    assert not any(llm.readback()["alive"].values())


def test_other_weights_run_and_the_old_ones_come_back(llm: LLM, tmp_path: Path):
    llm.flush_cache()
    before, own = answers(llm), llm.resolved.model_path
    other = str(other_weights(tmp_path / "other"))
    llm.update_weights_from_disk(other)
    assert llm.resolved.model_path == other
    fresh = LLM(replace(asked(Cell.from_id(CELL)), model_path=other), resolve_path)
    found = answers(llm)
    assert found == answers(fresh) and [ids for ids, *_ in found] != [ids for ids, *_ in before]
    llm.update_weights_from_disk(own)
    assert answers(llm) == before


def test_other_drafts_change_acceptance_only(llm: LLM, tmp_path: Path):
    llm.flush_cache()
    before = answers(llm)
    folder = tmp_path / "draft"
    shutil.copytree(resolve_path("llama-mini-eagle3"), folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.roll(1, 0) if tensor.dim() == 2 else tensor for name, tensor in weights.items()},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    llm.update_weights_from_disk(llm.resolved.model_path, str(folder))
    after = answers(llm)
    assert [ids for ids, *_ in after] == [ids for ids, *_ in before]
    assert sum(len(lengths) for _, lengths, _ in after) > 1.5 * sum(len(lengths) for _, lengths, _ in before)
    llm.update_weights_from_disk(llm.resolved.model_path, "llama-mini-eagle3")
    assert answers(llm) == before


def test_weights_that_cannot_run_leave_the_engine_as_it_is(llm: LLM, tmp_path: Path):
    llm.flush_cache()
    before = answers(llm)
    damaged = other_weights(tmp_path / "damaged", change=float("nan"))
    cut = other_weights(tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-4000])
    for path, sentence in (
        (damaged, "holds NaN or infinite numbers"),
        (cut, "truncated or damaged"),
        ("qwen3-mini", "the draft reads hidden states of width 128, but the target's have width 112"),
        ("nowhere", "model 'nowhere' is neither a folder nor in the zoo"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            llm.update_weights_from_disk(str(path))
        assert not llm.released and answers(llm) == before
        llm.flush_cache()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda llm: llm.resume_memory_occupation(), "memory is not released; allowed first: release_memory"),
        (lambda llm: llm.release_memory_occupation(["weights"]), r"tags is \['weights'\]; allowed: all of kv_cache, w"),
        (lambda llm: llm.release_memory_occupation(7), "tags is 7; allowed: all of kv_cache, weights, cuda_graph"),
        (lambda llm: llm.update_weights_from_disk(""), "model_path is ''; allowed: a model's name or folder"),
        (lambda llm: llm.update_weights_from_disk("llama-mini", 3), "draft_model_path is 3; allowed: a model's name"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(llm: LLM, call, sentence):
    with pytest.raises(RequestError, match=sentence):
        call(llm)
    assert not llm.released


def test_running_requests_and_sessions_with_kv_come_first(llm: LLM):
    verbs = (llm.release_memory_occupation, lambda: llm.update_weights_from_disk("llama-mini"))
    rid = llm.add(PROMPTS[0], GREEDY)
    llm.step()
    for verb in verbs:
        with pytest.raises(RequestError, match="an idle engine, but 1 of its requests are running or queued"):
            verb()
    while llm.step():
        pass
    llm.take(rid)
    name = llm.open_session(1000, streaming=True)
    llm.generate(PROMPTS[:1], GREEDY, SessionParams(name))
    for verb in verbs:
        with pytest.raises(RequestError, match="without sessions that hold KV, but 1 of them do; close them first"):
            verb()
    llm.close_session(name)
    llm.step()
    llm.release_memory_occupation()
    with pytest.raises(RequestError, match="released already; allowed next: resume_memory_occupation"):
        llm.release_memory_occupation()
    with pytest.raises(RequestError, match=RELEASED):
        llm.update_weights_from_disk("llama-mini")
    llm.resume_memory_occupation()


def test_a_checkpoint_that_is_gone_leaves_the_memory_released_until_it_is_back(tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("llama-mini"), folder)
    llm = LLM(EngineConfig(model_path=str(folder)))
    before = answers(llm)
    llm.release_memory_occupation()
    (folder / "model.safetensors").rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="has no weights"):
        llm.resume_memory_occupation()
    assert llm.released
    (tmp_path / "away").rename(folder / "model.safetensors")
    llm.resume_memory_occupation()
    assert answers(llm) == before


def test_another_shape_and_a_draft_without_one_are_refused(tmp_path: Path):
    llm = LLM(EngineConfig(model_path="llama-mini"), resolve_path)
    with pytest.raises(RequestError, match="draft_model_path is given, but the engine has no draft model"):
        llm.update_weights_from_disk("llama-mini", "llama-mini-eagle3")
    with pytest.raises(ConfigError, match="resolves to radix_cache False instead of True; weights of another shape"):
        llm.update_weights_from_disk("qwen3-mini")
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("llama-mini"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    words["A"], words["B"] = words["B"], words["A"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ConfigError, match="has another tokenizer, which needs its own engine"):
        llm.update_weights_from_disk(str(folder))


@pytest.mark.nightly
def test_two_ranks_release_resume_and_load_together():
    config = replace(asked(Cell.from_id("eagle3.tp2.s3.k4.n8.v2.p16")), tp_size=2)
    with RankedLLM(config, resolve_path) as llm:
        before = answers(llm)
        llm.release_memory_occupation()
        with pytest.raises(RequestError, match=RELEASED):
            llm.generate(PROMPTS)
        llm.resume_memory_occupation()
        assert answers(llm) == before
        llm.update_weights_from_disk("llama-mini")
        assert (answers(llm), llm.resolved.model_path) == (before, "llama-mini")
        with pytest.raises(ConfigError, match="is neither a folder nor in the zoo"):
            llm.update_weights_from_disk("nowhere")
        assert answers(llm)[0][:2] == before[0][:2]
