"""NEXTN: prediction layers of another checkpoint, and prompts of the whole context."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams


@pytest.fixture
def folder(zoo, tmp_path) -> Path:
    """A target that knows 512 positions."""
    made = shutil.copytree(zoo("deepseek-mini"), tmp_path / "target")
    config = json.loads((made / "config.json").read_text()) | {"max_position_embeddings": 512}
    (made / "config.json").write_text(json.dumps(config))
    return made


def start_engine(folder: Path, steps: int, draft: str | None = None) -> LLM:
    sizes = {"context_length": 512, "max_total_tokens": 1024, "strict_memory": 2}
    return LLM(EngineConfig(str(folder), "NEXTN", draft, steps, 1, steps + 1, **sizes))


def test_layers_of_a_different_checkpoint_may_be_named(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.layers.4.enorm.weight"] *= 3
    save_file(weights, other / "model.safetensors")
    layer = start_engine(folder, 4, str(other)).loop.executor.drafter.model
    assert torch.equal(layer.word_norm, weights["model.layers.4.enorm.weight"].float())


@pytest.mark.parametrize("steps", [1, 2])
def test_a_long_cached_prompt_beside_a_long_new_one(folder, steps):
    """The new one's tokens pad the cached one's last token, far past the positions that the models know."""
    llm = start_engine(folder, steps)
    once, fresh = [[(7 * place + salt) % 700 for place in range(440)] for salt in (0, 3)]
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    (before,) = llm.generate([once], params)
    again, _ = llm.generate([once, fresh], params)
    assert again.output_ids == before.output_ids and again.cached_tokens > 400
