"""Prediction layers against those that the zoo trains, the facts that announce them, and their refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specmatrix.engine.core.config.asked import DraftFacts
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.loader import facts, load_nextn, load_target
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo import heads
from specmatrix.matrix.zoo.bundled_net import DeepseekNet
from specmatrix.matrix.zoo.checkpoint import named, new_net, read_net
from specmatrix.matrix.zoo.net import rope_table
from specmatrix.matrix.zoo.registry import RECIPES, Recipe
from tests.support.random_drafts import random_weights, save

BOUND = 1e-5  # of the largest value
SIZES = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "moe_intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 3, "num_key_value_heads": 3, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
    "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
}  # fmt: skip
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
TOKENS = torch.randint(0, 97, (21,), generator=torch.Generator().manual_seed(1))


def sized(**changes: object) -> Recipe:
    recipe = RECIPES["deepseek-mini"]
    return replace(recipe, config=recipe.config | SIZES | changes)


@pytest.fixture
def folder(tmp_path):
    """A factory: a target with its prediction layers; `drop` removes tensors, `put` adds them."""

    def build(name: str = "t", drop: tuple[str, ...] = (), put: dict[str, Tensor] | None = None, **changes: object):
        recipe = sized(**changes)
        shapes = {name: tuple(tensor.shape) for name, tensor in named(new_net(recipe)).items()}
        own = {name: shape for name, shape in shapes.items() if "layers" not in name or not name.endswith(COPIES)}
        weights = random_weights(own, 5) | (put or {})
        return save(tmp_path / name, recipe.config, {k: w for k, w in weights.items() if k not in drop})

    return build


def loaded(made: Path, count: int = 2, deterministic: bool = True) -> list:
    target = load_target(made, "cpu", torch.float32, deterministic)
    return list(load_nextn(made, target, count))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("index", [0, 1])
@torch.inference_mode()
def test_a_layer_is_its_formula(folder, paged, index, deterministic):
    made = folder()
    model = loaded(made, 2, deterministic)[index]
    driver, states = paged(model, 1, 20), torch.randn(20, 48, generator=torch.Generator().manual_seed(2))

    def attend(start: int, width: int):
        step = driver.attend([0], [start], torch.ones(width, width).tril().bool())
        return lambda layer, q, kv: step(layer - index, q, kv)

    out = model.forward(TOKENS[None, 1:20], torch.arange(19)[None], states[None, :19], attend(0, 19))[0]
    net = read_net(made, sized(), torch.device("cpu"))
    assert isinstance(net, DeepseekNet)
    head = net.bundled()[index]

    def whole(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        table = rope_table(head.shape, torch.arange(len(tokens)))
        state, logits = head.step(tokens[None], states[None], table, heads.whole)
        return state[0], logits[0]

    theirs, _ = whole(TOKENS[1:20], states[:19])
    assert (out - theirs).abs().max() < BOUND * theirs.abs().max()
    lone = model.forward(TOKENS[None, 20:], torch.tensor([[19]]), out[None, -1:], attend(19, 1))[0]
    theirs, logits = (each[-1:] for each in whole(TOKENS[1:], torch.cat((states[:19], theirs[-1:]))))
    assert (lone - theirs).abs().max() < BOUND * theirs.abs().max()
    assert (model.logits(lone) - logits).abs().max() < BOUND * logits.abs().max()
    assert (model.aux_layers, model.carry_width, model.vocab_size) == ((FINAL,), 48, 97)


def test_facts_describe_a_checkpoint(folder, llama_folder):
    made = folder()
    brought = {
        "vocab_size": 97,
        "hidden_size": 48,
        "target_hidden_size": 48,
        "aux_layers": (FINAL,),
        "prediction_layers": 2,
    }
    known = facts(made, None, "cpu")
    assert known.bundled == DraftFacts("DeepseekV3ForCausalLMNextN", **brought)
    assert facts(made, made, "cpu").draft == DraftFacts("DeepseekV3ForCausalLM", **brought)
    assert facts(folder("bare", num_nextn_predict_layers=0), None, "cpu").bundled is None
    assert facts(llama_folder(), None, "cpu").bundled is None


def test_the_target_leaves_the_prediction_layers_alone(folder):
    assert len(load_target(folder(), "cpu", torch.float32).layers) == 2


def test_fewer_layers_may_be_taken_than_there_are(folder):
    assert len(loaded(folder(), 1)) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drop": ("model.layers.2.enorm.weight",)}, "tensor 'model.layers.2.enorm.weight' is missing"),
        ({"drop": ("model.layers.3.shared_head.norm.weight",)}, "'model.layers.3.shared_head.norm.weight' is missing"),
        ({"put": {"model.layers.3.norm.weight": torch.ones(48)}}, "'model.layers.3.norm.weight' does not belong"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1, fewer than the 2 layers to draft with"),
    ],
)
def test_refusals(folder, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        loaded(folder(**changes))
