"""DFLASH's network against the one that the zoo trains, over whole sequences, and its refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.device.attention import DraftAttention
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.models.loader import load_dflash, load_target
from specmatrix.engine.spec import dflash
from specmatrix.errors import ConfigError
from tests.support.block_drafts import block, block_net, read, shapes_of
from tests.support.random_drafts import random_weights, save

BOUND = 1e-5  # of the largest value
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 256,
    "block_size": 7,
    "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2]},
}


@pytest.fixture
def folder(tmp_path):
    """A factory: a DFLASH draft with random weights; `drop` removes tensors, `put` adds them."""

    def build(*, drop: tuple[str, ...] = (), put: dict[str, Tensor] | None = None, **changes: object) -> Path:
        config = CONFIG | changes
        weights = random_weights(shapes_of(block_net(config)), 5) | (put or {})
        return save(tmp_path / "draft", config, {k: w for k, w in weights.items() if k not in drop})

    return build


@pytest.fixture
def target(llama_folder):
    return load_target(llama_folder(), "cpu", torch.float32)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("length", [1, 20])
@torch.inference_mode()
def test_a_block_over_its_context_is_the_formula(llama_folder, folder, paged, length, deterministic):
    target = load_target(llama_folder(), "cpu", torch.float32, deterministic)
    made = folder()
    model = load_dflash(made, target)
    states = torch.randn(length, 2 * 48, generator=torch.Generator().manual_seed(1))
    driver, positions = paged(model, 1, 32), torch.arange(length)[None]
    for at in range(0, length, 7):  # in chunks, the last of them one token where length is 1
        chunk = slice(at, at + 7)
        for layer, kv in enumerate(model.context(states[None, chunk], positions[:, chunk])):
            driver.pool.store(layer, driver.slots[0, chunk][: len(kv)], kv)
    bias = torch.zeros(1, 1, 1, length)
    attend = DraftAttention(driver.pool, driver.slots[:, :length], bias, 7)
    attend.begin(0, torch.ones(1, 7, 7, dtype=torch.bool))
    tokens = torch.tensor([[11, *[96] * 6]])
    ours = model.logits(model.forward(tokens, length + torch.arange(7)[None], attend))[0]
    net = read(block_net(CONFIG, target.embedding, target.head.t()), made)
    theirs = net.corrected(block(net, 11, 7, states), torch.zeros(7))
    assert theirs.abs().max() > 1.0
    assert (ours - theirs).abs().max() < BOUND * theirs.abs().max()


@torch.inference_mode()
def test_a_round_reads_its_prefix_alone_and_may_have_no_drafts(target, folder, paged, monkeypatch):
    model = load_dflash(folder(), target)
    driver, seen, words, forward = paged(model, 1, 32), [], [], model.forward
    monkeypatch.setattr(model, "forward", lambda tokens, *rest: words.append(tokens.tolist()) or forward(tokens, *rest))

    def attention(pool: KVPool, slots: Tensor, bias: Tensor, width: int) -> DraftAttention:
        seen.append(slots.shape[1])
        return DraftAttention(pool, slots, bias, width)

    monkeypatch.setattr(dflash, "DraftAttention", attention)
    traits: Any = SimpleNamespace(key_span=0)
    drafter = dflash.BlockDrafter(traits, model, driver.pool, 7)
    for width, tokens in ((7, 7), (1, 1)):
        root = torch.tensor([[11]])
        batch = StepBatch(torch.tensor([1]), torch.tensor([9]), root, width, 10 + width, driver.slots, None)
        relay: Any = None
        tree = drafter.propose(batch, relay)
        assert tree.tokens.shape == (1, tokens) and tree.tokens[0, 0] == 11
    assert seen == [10] and words == [[[11, *[96] * 6]]]


@torch.inference_mode()
def test_states_are_the_hidden_states_that_z_labs_code_takes(target, folder, llama_folder, paged):
    """transformers' hidden_states[id + 1], whose last one is behind the final norm."""
    model = load_dflash(folder(), target)
    assert (model.aux_layers, model.mask_token) == ((1, FINAL), 96)
    tokens = torch.randint(0, 97, (1, 20), generator=torch.Generator().manual_seed(1))
    attend = paged(target, 1, 20).attend([0], [0], torch.ones(20, 20).tril().bool())
    ours = target.forward(tokens, torch.arange(20)[None], attend, model.aux_layers)[1]
    theirs = LlamaForCausalLM.from_pretrained(llama_folder("again"))(tokens, output_hidden_states=True).hidden_states
    expected = torch.cat([theirs[layer + 1] for layer in CONFIG["dflash_config"]["target_layer_ids"]], -1)
    assert (ours - expected).abs().max() < BOUND * expected.abs().max()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_target_layers": 4}, "num_target_layers 4 differs from the target's 3"),
        ({"num_target_layers": 0}, "num_target_layers must be a positive integer, got 0"),
        ({"drop": ("hidden_norm.weight",)}, "tensor 'hidden_norm.weight' is missing from the weights"),
        ({"drop": ("layers.1.self_attn.k_norm.weight",)}, "tensor 'layers.1.self_attn.k_norm.weight' is missing"),
        ({"put": {"lm_head.weight": torch.zeros(97, 48)}}, "tensor 'lm_head.weight' does not belong to this"),
        ({"put": {"fc.weight": torch.zeros(48, 144)}}, r"tensor 'fc.weight' has shape \(48, 144\), but config.json"),
    ],
)
def test_refusals(target, folder, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_dflash(folder(**changes), target)


def test_an_embedding_of_the_mask_token_is_refused(target, folder):
    made = folder()
    (made / "mask_embedding.pt").touch()
    with pytest.raises(ConfigError, match=r"draft has mask_embedding.pt, an embedding of the mask token that is not"):
        load_dflash(made, target)
