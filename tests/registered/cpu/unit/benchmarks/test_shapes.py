"""Checkpoints of random weights load as a hub's do: sharded, bf16, tied or not, with scaled rotary positions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmatrix.benchmarks.shapes import LlamaShape, write_eagle3, write_target
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams

SMALL = LlamaShape(hidden=32, inner=56, layers=9, heads=4, kv_heads=2, head_dim=8, vocab=768, tied=True)


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_checkpoint_speculates(tmp_path, tied):
    shape = replace(SMALL, tied=tied)
    target, draft = write_target(tmp_path / "t", shape, "cpu", "60KB"), write_eagle3(tmp_path / "d", shape, "cpu")
    assert len(list(target.glob("model-*.safetensors"))) > 1
    asked = EngineConfig(str(target), "EAGLE3", str(draft), 2, 1, 3, context_length=64, max_total_tokens=128)
    llm = LLM(asked)
    (output,) = llm.generate([[3, 4, 5]], SamplingParams(max_new_tokens=6, ignore_eos=True))
    assert len(output.output_ids) == 6 and llm.counters["spec.drafted"]
