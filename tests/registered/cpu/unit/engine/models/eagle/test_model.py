"""EAGLE-1/2 and EAGLE-3 drafts against their formulas in plain torch, over whole sequences, and EAGLE's refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.loader import facts, load_eagle, load_eagle3, load_target
from specmatrix.errors import ConfigError
from tests.support.random_drafts import eagle_shapes, layer_shapes, random_weights, save
from tests.support.tables import table
from tests.support.uncached_models import WholeEagle, WholeEagle3

BOUND = 1e-5  # of the largest value
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle"],
    "vocab_size": 97,
    "hidden_size": 48,
    "max_position_embeddings": 256,
    "num_hidden_layers": 1,
    "intermediate_size": 56,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
TOKENS = torch.randint(0, 97, (21,), generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() < BOUND * theirs.abs().max())


@pytest.fixture
def folder(tmp_path):
    """A factory: an EAGLE draft with random weights for SHAPE; `drop` removes tensors, `put` adds them."""

    def build(*, drop: tuple[str, ...] = (), put: dict[str, Tensor] | None = None, **changes: object):
        config = CONFIG | changes
        weights = random_weights(eagle_shapes(config), 5) | (put or {})
        return save(tmp_path / "draft", config, {k: w for k, w in weights.items() if k not in drop})

    return build


@pytest.fixture
def target(llama_folder):
    return load_target(llama_folder(), "cpu", torch.float32)


def extend(model, driver, tokens: Tensor, states: Tensor) -> Tensor:
    """The draft's causal pass over one sequence, from position 0."""
    attend = driver.attend([0], [0], torch.ones(len(tokens), len(tokens)).tril().bool())
    return model.forward(tokens[None], torch.arange(len(tokens))[None], states[None], attend)[0]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_eagle_is_its_formula(llama_folder, folder, paged, bias, layers, deterministic):
    target = load_target(llama_folder(), "cpu", torch.float32, deterministic)
    put = {"fc.bias": torch.randn(48)} if bias else {}
    made = folder(put=put, num_hidden_layers=layers)
    model = load_eagle(made, target)
    states = torch.randn(20, 48)
    oracle = WholeEagle(made, target.embedding, target.head.t())
    theirs = oracle.run(TOKENS[1:], list(states))
    out = extend(model, paged(model, 1, 20), TOKENS[1:], states)
    assert theirs.abs().max() > 1.0
    assert close(out, theirs)
    assert close(model.logits(out), oracle.logits(theirs))
    assert model.to_target(torch.tensor([5, 90])).tolist() == [5, 90]


@torch.inference_mode()
def test_a_lone_token_goes_on_from_its_own_state(target, folder, paged):
    made = folder()
    model = load_eagle(made, target)
    driver, states = paged(model, 1, 20), torch.randn(8, 48)
    out = extend(model, driver, TOKENS[1:9], states)[-1:]
    carried = out.clone()
    attend = driver.attend([0], [8], torch.ones(1, 1).bool())
    deeper = model.forward(TOKENS[9:10][None], torch.tensor([[8]]), out[None], attend)[0, 0]
    theirs = WholeEagle(made, target.embedding, target.head.t()).run(TOKENS[1:10], [*states, carried[0]])
    assert close(deeper, theirs[-1])
    assert torch.equal(out, carried), "the carried state is not changed"


@torch.inference_mode()
def test_its_own_embedding_takes_precedence_over_the_targets(target, folder, paged):
    own = torch.randn(97, 48)
    made = folder(put={"embed_tokens.weight": own, "lm_head.weight": torch.zeros(97, 48)})
    model = load_eagle(made, target)
    assert torch.equal(model.embedding, own)
    assert torch.equal(model.head, target.head), "EAGLE's head is the target's, whatever the checkpoint brings"
    assert (model.aux_layers, model.carry_width, model.vocab_size) == ((FINAL,), 48, 97)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drop": ("fc.weight",)}, "tensor 'fc.weight' is missing from the weights"),
        ({"put": {"norm.weight": torch.ones(48)}}, "tensor 'norm.weight' does not belong to this architecture"),
        ({"put": {"layers.0.input_layernorm.weight": torch.ones(48)}}, "tensor 'layers.0.input_layernorm.weight' does"),
    ],
)
def test_refusals(target, folder, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_eagle(folder(**changes), target)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_an_eagle_draft_under_its_targets_name(target, llama_folder, folder, prefix, tmp_path):
    """EAGLE's authors publish drafts whose config.json says LlamaForCausalLM; the tensors show what they are."""
    made = folder()
    honest = load_eagle(made, target)
    renamed = {f"{prefix}{name}": tensor for name, tensor in load_file(made / "model.safetensors").items()}
    misnamed = save(tmp_path / "as_target", CONFIG | {"architectures": ["LlamaForCausalLM"]}, renamed)
    known = facts(llama_folder("again"), misnamed, "cpu").draft
    assert known == facts(llama_folder("once more"), made, "cpu").draft
    assert (known.architecture, known.aux_layers) == ("LlamaForCausalLMEagle", (FINAL,))
    assert torch.equal(load_eagle(misnamed, target).fuse, honest.fuse)
    with pytest.raises(ConfigError, match="is a LlamaForCausalLMEagle, but an EAGLE3 draft must be"):
        load_eagle3(misnamed, target)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM"])
@pytest.mark.parametrize("first", ["midlayer", "layers.0", "model.layers.0"])
def test_an_eagle3_draft_under_another_name(target, llama_folder, eagle_folder, first, name):
    """Its target's, or AngelSlim's."""
    made = eagle_folder(architectures=[name])
    weights = load_file(made / "model.safetensors")
    save_file({key.replace("midlayer", first): w for key, w in weights.items()}, made / "model.safetensors")
    assert facts(llama_folder("again"), made, "cpu").draft.architecture == "LlamaForCausalLMEagle3"
    assert load_eagle3(made, target).vocab_size == 41


def respelled(made: Path, **changes: object) -> Path:
    """The draft in vLLM's spelling: the layer's sizes one level deeper, and `layers.0` for the first layer."""
    weights = load_file(made / "model.safetensors")
    save_file({key.replace("midlayer", "layers.0"): w for key, w in weights.items()}, made / "model.safetensors")
    layer = json.loads((made / "config.json").read_text())
    config = {
        name: layer.pop(name) for name in ("architectures", "eagle_config", "draft_vocab_size", "target_hidden_size")
    }
    config |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "norm_before_residual": True}
    del config["eagle_config"]
    config |= {"eagle_aux_hidden_state_layer_ids": None, "transformer_layer_config": layer}
    (made / "config.json").write_text(json.dumps(config | changes))
    return made


@torch.inference_mode()
def test_a_speculator_is_the_head_that_it_spells(target, eagle_folder, paged):
    """vLLM's ids name layers whose input is read, SGLang's those whose output is."""
    flat = eagle_folder("flat", norm_before_residual=True)
    made = respelled(eagle_folder("nested"), eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    ours, theirs = (load_eagle3(folder, target) for folder in (made, flat))
    states = torch.randn(20, 144)
    assert torch.equal(*(extend(model, paged(model, 1, 20), TOKENS[1:], states) for model in (ours, theirs)))
    assert (ours.aux_layers, ours.vocab_size) == (theirs.aux_layers, 41) == ((1, 2, 3), 41)


@pytest.mark.parametrize("shape", [(144,), (1, 144), (1, 1, 144)])
def test_a_speculator_with_mask_tokens(target, eagle_folder, shape):
    named = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "speculators_model_type": "peagle"}
    made = respelled(eagle_folder(), mask_token_id=0, **named)
    hidden = torch.arange(144.0)
    with pytest.raises(ConfigError, match="tensor 'mask_hidden' is missing from the weights"):
        load_eagle3(made, target)
    save_file(load_file(made / "model.safetensors") | {"mask_hidden": hidden.view(shape)}, made / "model.safetensors")
    token, state = load_eagle3(made, target).masks
    assert token == 0 and torch.equal(state, hidden)
    config = json.loads((made / "config.json").read_text()) | {"speculators_model_type": "eagle3"}
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="tensor 'mask_hidden' does not belong to this architecture"):
        load_eagle3(made, target)


def test_a_speculator_reads_the_usual_states(llama_folder, eagle_folder):
    made = respelled(eagle_folder())
    known = facts(llama_folder(num_hidden_layers=9), made, "cpu").draft
    assert (known.architecture, known.aux_layers) == ("LlamaForCausalLMEagle3", (2, 4, 6))


@pytest.mark.parametrize(("changes", "sentence"), table(__file__)["speculators"])
def test_speculators_that_are_refused(target, eagle_folder, changes, sentence):
    made = respelled(eagle_folder(), **changes)
    with pytest.raises(ConfigError, match=sentence):
        load_eagle3(made, target)


def test_a_llama_stays_a_llama(target, llama_folder, tmp_path):
    """Also one whose weights are not there yet; loading it names what is missing."""
    draft = llama_folder("draft", hidden_size=32)
    assert facts(llama_folder("again"), draft, "cpu").draft.architecture == "LlamaForCausalLM"
    (draft / "model.safetensors").unlink()
    assert facts(tmp_path / "again", draft, "cpu").draft.architecture == "LlamaForCausalLM"


OWN = {"hidden_size": 36, "intermediate_size": 56, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12}
LAST = {"eagle_config": {"use_aux_hidden_state": False}}
SHARED = {"hidden_size": 48, "draft_vocab_size": 97, "drop": ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight")}
ALIKE = LAST | SHARED | {"drop": (*SHARED["drop"], "fc.weight")}


def random_layers(count: int) -> dict[str, object]:
    """Plain Llama layers 1 to count - 1 of an EAGLE-3 draft."""
    shapes = {name: size for index in range(1, count) for name, size in layer_shapes(f"layers.{index}.", OWN).items()}
    return {"num_hidden_layers": count, "put": random_weights(shapes, 1)}


def fused(states: int) -> dict[str, object]:
    return {"put": random_weights({"fc.weight": (36, states * 48)}, 3)}


# Changes to the EAGLE-3 fixture's checkpoint, and the number of states that it reads.
EAGLE3 = {
    "a normed stream": ({"norm_before_residual": True}, 3),
    "three layers": (random_layers(3), 3),
    "no vocabulary of its own": (SHARED, 3),
    "two states": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]}} | fused(2), 2),
    "the last state": (LAST | fused(1), 1),
    "the last state, as wide as the draft": (ALIKE, 1),
}


@pytest.mark.parametrize(("changes", "states"), EAGLE3.values(), ids=EAGLE3)
@torch.inference_mode()
def test_eagle3_is_its_formula(target, eagle_folder, paged, changes, states):
    width = states * 48
    made = eagle_folder(**changes)
    model = load_eagle3(made, target)
    oracle, states = WholeEagle3(made, target.embedding, target.head.t()), torch.randn(20, width)
    driver = paged(model, 1, 20)
    out = extend(model, driver, TOKENS[1:20], states[:19])
    theirs = oracle.run(TOKENS[1:20], list(states[:19]))
    assert close(out, theirs)
    last = out[-1:].clone()
    attend, carried = driver.attend([0], [19], torch.ones(1, 1).bool()), out[-1:].clone()
    out = model.forward(TOKENS[20:][None], torch.tensor([[19]]), carried[None], attend)[0]
    theirs = oracle.run(TOKENS[1:], [*states[:19], theirs[-1]])[-1:]
    assert close(out, theirs) and torch.equal(carried, last), "the carried stream is not changed"
    logits, expected = model.logits(out)[0], oracle.logits(theirs)[0]
    ids = model.to_target(torch.arange(len(logits)))
    assert close(logits, expected[ids])
    assert (model.kv.layers, model.aux_layers[0] == FINAL) == (changes.get("num_hidden_layers", 1), width == 48)


def test_states_as_wide_as_the_draft_are_not_fused(target, eagle_folder):
    """Where widths agree SGLang applies no `fc`, so a checkpoint that has one is refused."""
    with pytest.raises(ConfigError, match=r"tensor 'fc\.weight' does not belong to this architecture"):
        load_eagle3(eagle_folder(**LAST | SHARED), target)
