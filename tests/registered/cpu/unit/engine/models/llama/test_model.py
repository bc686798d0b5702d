"""The target model against transformers' own on the same checkpoint, and bitwise equality across call shapes."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaForCausalLM

from specmatrix.engine.models.loader import load_target
from specmatrix.errors import ConfigError

BOUND = 1e-4  # float32, largest absolute difference of a logit; logits here reach about 10
TOKENS = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def pair(llama_folder):
    """A factory: our model and transformers' on one checkpoint."""

    def build(deterministic: bool = True, **changes: object):
        folder = llama_folder(**changes)
        return (
            load_target(folder, "cpu", torch.float32, deterministic),
            LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
        )

    return build


def close(ours, theirs):
    assert ours.dtype is torch.float32
    assert theirs.abs().max() > 1.0
    assert (ours - theirs).abs().max() < BOUND


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
@torch.inference_mode()
def test_storage_matches_transformers(pair, paged, storage, shard):
    ours, theirs = pair(dtype=storage, shard=shard)
    close(paged(ours, 3, 40).run(TOKENS, [0, 0, 0]), theirs(TOKENS).logits)


@torch.inference_mode()
def test_a_lone_token_returns_one_row(pair, paged):
    ours, _ = pair()
    attend = paged(ours, 1, 8).attend([0], [0], torch.ones(1, 1).bool())
    hidden, aux = ours.forward(TOKENS[:1, :1], torch.zeros(1, 1, dtype=torch.int64), attend, capture=(1,))
    assert hidden.shape == aux.shape == (1, 1, 48)
    assert ours.logits(hidden).shape == (1, 1, 97)


@torch.inference_mode()
def test_positions_reach_past_the_context_as_far_as_requested(llama_folder, paged):
    ours, last = load_target(llama_folder(), "cpu", torch.float32, positions=700), 699
    attend = paged(ours, 1, 4).attend([0], [0], torch.ones(1, 1).bool())
    hidden, _ = ours.forward(TOKENS[:1, :1], torch.tensor([[last]]), attend)
    assert hidden.isfinite().all()


@torch.inference_mode()
def test_the_fast_path_may_differ_by_rounding_only(llama_folder, paged):
    folder = llama_folder()
    fast = paged(load_target(folder, "cpu", torch.float32, False), 1, 4).run(TOKENS[:1, :1], [0])
    slow = paged(load_target(folder, "cpu", torch.float32, True), 1, 4).run(TOKENS[:1, :1], [0])
    assert (fast - slow).abs().max() < BOUND


class TestRefusals:
    def test_missing_tensor(self, llama_folder):
        folder = llama_folder(shard="20KB")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        name = "model.layers.1.mlp.up_proj.weight"
        index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v != index["weight_map"][name]}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ConfigError, match=r"tensor 'model\..*' is missing from the weights"):
            load_target(folder, "cpu", torch.float32)

    def test_shape_that_config_does_not_imply(self, llama_folder):
        folder = llama_folder()
        config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 96}
        (folder / "config.json").write_text(json.dumps(config))
        sentence = r"'model.embed_tokens.weight' has shape \(97, 48\), but config.json implies \(96, 48\)"
        with pytest.raises(ConfigError, match=sentence):
            load_target(folder, "cpu", torch.float32)

    def test_tensor_without_a_place(self, llama_folder):
        folder = llama_folder()
        config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"tensor 'model.layers.2.* does not belong to this architecture"):
            load_target(folder, "cpu", torch.float32)
