"""The registry as data: its content, and that the engine accepts all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.models.config import read_model_config
from specmatrix.engine.models.loader import facts_of
from specmatrix.matrix.zoo.published.pairs import MODELS, PAIRS, TIP, find, pair_of
from tests.support.refusals import refusal


def test_the_kinds_of_models_and_drafts_that_a_gpu_tier_must_have():
    kinds = {(MODELS[pair.target].config["architectures"][0], pair.algorithm) for pair in PAIRS.values()}
    due = "Llama EAGLE3, Llama STANDALONE, Qwen3 EAGLE3, Qwen3 DFLASH, Mistral NGRAM, DeepseekV3 NEXTN"
    assert {f"{name.removesuffix('ForCausalLM')} {algorithm}" for name, algorithm in kinds} == set(due.split(", "))
    assert {name for pair in PAIRS.values() for name in pair.models} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_revision_is_a_commit_or_said_to_be_none(name):
    model = MODELS[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.repo)
    if model.revision == TIP:
        assert "the revision" in model.unverified
    else:
        assert re.fullmatch("[0-9a-f]{40}", model.revision)


@pytest.mark.parametrize("name", PAIRS)
def test_the_engine_runs_it_on_one_gpu_as_requested(name):
    pair = PAIRS[name]
    configs = [read_model_config(model.config, Path(model.repo) / "config.json") for model in pair.models.values()]
    start = resolve(pair.config, facts_of(configs[0], configs[1] if pair.draft else None, "cuda", 1))
    assert (start.device, start.dtype, start.algorithm) == ("cuda", "bfloat16", pair.algorithm)
    asked = {field: getattr(start, field.removeprefix("speculative_").replace("eagle_", "")) for field in pair.flags}
    assert asked == dict(pair.flags)
    # Pages of windowed layers are freed before a prefix could be reused.
    rewrites = ["disable_radix_cache"] if name == "mistral-7b.ngram" else []
    assert [rewrite.field for rewrite in start.rewrites] == rewrites
    assert pair.baseline.speculative_algorithm == "NONE" and pair.baseline.model_path == pair.config.model_path


def test_a_command_names_its_pair_and_an_unknown_name_the_known_ones():
    command = PAIRS["qwen3-8b.dflash"].gsm8k
    assert command.startswith("specmatrix accuracy --checkpoint qwen3-8b.dflash --data ")
    assert "--num-fewshot 5" in command
    text = "checkpoint 'qwen3-8b.eagle' is unknown; the closest is qwen3-8b.eagle3"
    assert refusal(pair_of, "qwen3-8b.eagle") == text
    text = "checkpoint 'gpt-2' is unknown; it must be one of llama-3.1-8b.eagle3, llama-3.1-8b.standalone, "
    assert refusal(pair_of, "gpt-2").startswith(text)


QWEN = MODELS["qwen3-8b"]
LLAMA = MODELS["llama-3.1-8b-instruct"]
COMMIT = QWEN.revision
FETCH = f"`hf download Qwen/Qwen3-8B --revision {COMMIT}` fetches it"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(cache: Path, commit: str) -> Path:
    folder = cache / "models--Qwen--Qwen3-8B" / "snapshots" / commit
    folder.mkdir(parents=True)
    return folder


def test_the_commit_that_was_meant(cache):
    snapshot(cache, "f" * 40)
    folder = snapshot(cache, COMMIT)
    assert find(QWEN) == folder


def test_the_tip_agrees_with_the_cache(cache):
    model = replace(QWEN, revision=TIP)
    folder = snapshot(cache, "f" * 40)
    (cache / "models--Qwen--Qwen3-8B" / "refs").mkdir()
    (cache / "models--Qwen--Qwen3-8B" / "refs" / "main").write_text("f" * 40)
    assert find(model) == folder


def test_a_folder_of_the_user(tmp_path):
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    folder.mkdir(parents=True)
    assert find(QWEN, tmp_path) == folder
    (tmp_path / "Qwen3-8B").mkdir()
    assert find(QWEN, tmp_path) == tmp_path / "Qwen3-8B"


def test_nothing_there(cache):
    assert refusal(find, QWEN) == f"Qwen/Qwen3-8B at {COMMIT} is not in {cache}; {FETCH}"
    assert refusal(find, LLAMA).endswith("fetches it after its licence is accepted")
    text = f"Qwen/Qwen3-8B is not in {cache}; `hf download Qwen/Qwen3-8B` fetches it"
    assert refusal(find, replace(QWEN, revision=TIP)) == text
    snapshot(cache, "f" * 40)
    assert refusal(find, QWEN) == f"Qwen/Qwen3-8B at {COMMIT} is not in {cache}; {FETCH}"


def test_a_folder_without_it(tmp_path):
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    fetch = f"`hf download Qwen/Qwen3-8B --revision {COMMIT} --local-dir {folder}` fetches it"
    assert refusal(find, QWEN, tmp_path) == f"Qwen/Qwen3-8B is not in {tmp_path} (expected {folder}); {fetch}"
    nowhere = tmp_path / "nowhere"
    assert f"folder {nowhere} of checkpoints does not exist" in refusal(find, QWEN, nowhere)
