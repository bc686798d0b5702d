"""DFLASH2's convolutions and selector against those that the zoo trains, its configurations, and its engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.models.dflash.model import DFlash2
from specmatrix.engine.models.loader import load_dflash, load_target
from specmatrix.engine.spec.dflash import BlockDrafter
from specmatrix.errors import ConfigError
from tests.support.block_drafts import block, block_net, read, shapes_of
from tests.support.random_drafts import random_weights, save
from tests.support.tables import table

H, V, K, LENGTH = 48, 97, 5, 20
# The published draft's fields (Qwen3.8-27B-DFlash2), smaller.
OWN: dict[str, Any] = {
    "mask_token_id": 96, "target_layer_ids": [0, 2], "block_size": 7,
    "conv_kernel_size": 2, "conv_group_size": 6, "selector_rank": 10, "selector_top_k": K,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"], "vocab_size": V, "hidden_size": H, "intermediate_size": 56,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0, "max_position_embeddings": 256, "is_causal": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def build(drop: str = "", architecture: str = "DFlash2DraftModel", **changes: object):
        config = CONFIG | {"architectures": [architecture], "dflash_config": OWN | changes}
        weights = random_weights(shapes_of(block_net(CONFIG | {"dflash_config": OWN})), 7)
        return save(tmp_path / "draft", config, {k: w for k, w in weights.items() if k != drop})

    return build


def proposed(model: DFlash2, driver: Any, states, width: int, rows: SamplingRows | None):  # noqa: ANN401 - a fixture's
    """The drafter's tree for two requests with the same states, after the tokens 11 and 12."""
    for layer, kv in enumerate(model.context(states.expand(2, -1, -1), torch.arange(LENGTH).expand(2, -1))):
        driver.pool.store(layer, driver.slots[:, :LENGTH].flatten(), kv)
    traits: Any = SimpleNamespace(key_span=0)
    drafter = BlockDrafter(traits, model, driver.pool, width, rows is not None)
    ids, start, root = torch.arange(1, 3), torch.full((2,), LENGTH), torch.tensor([[11], [12]])
    relay: Any = SimpleNamespace(sampling_of=lambda ids: rows)
    batch = StepBatch(ids, start, root, width, LENGTH + width, driver.slots, None, (), relay, None, rows is None)
    return drafter.propose(batch, relay)


@pytest.mark.parametrize("architecture", ["DFlash2DraftModel", "DFlashDraftModel"])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("taps", "width"), [(2, 7), (2, 2), (4, 3)])
@torch.inference_mode()
def test_a_block_is_its_formula(llama_folder, folder, paged, monkeypatch, taps, width, deterministic, architecture):
    monkeypatch.setitem(OWN, "conv_kernel_size", taps)
    target = load_target(llama_folder(), "cpu", torch.float32, deterministic)
    made = folder(architecture=architecture)
    net = read(block_net(CONFIG | {"dflash_config": OWN}, target.embedding, target.head.t()), made)
    model = load_dflash(made, target)
    assert isinstance(model, DFlash2)
    states = torch.randn(LENGTH, 2 * H, generator=torch.Generator().manual_seed(1))
    rows = SamplingRows(torch.tensor([0.0, 0.7]), torch.zeros(2).long(), torch.ones(2), torch.tensor([3, 4]))
    greedy = proposed(model, paged(model, 2, 32), states, width, None)
    drawn = proposed(model, paged(model, 2, 32), states, width, rows)
    assert drawn.tokens[0].tolist() == greedy.tokens[0].tolist() and greedy.q is None
    for tree, row, heat in ((greedy, 0, None), (greedy, 1, None), (drawn, 0, None), (drawn, 1, 0.7)):
        tokens = tree.tokens[row].tolist()
        hidden = block(net, tokens[0], width, states)
        for i in range(1, width):
            scores = net.corrected(hidden[i], torch.tensor(tokens[i - 1]))
            assert scores.isfinite().sum() == K
            if heat is None:
                assert tokens[i] == scores.argmax()
            if tree.q is not None:
                law = torch.softmax(scores / (heat or 1e-6), 0)
                assert (tree.q[row, i - 1] - law).abs().max() < 1e-5 and scores[tokens[i]].isfinite()


@pytest.mark.parametrize(("changes", "sentence"), table(__file__)["refusals"])
def test_refusals(llama_folder, folder, changes, sentence):
    target = load_target(llama_folder(), "cpu", torch.float32)
    with pytest.raises(ConfigError, match=sentence):
        load_dflash(folder(**changes), target)
