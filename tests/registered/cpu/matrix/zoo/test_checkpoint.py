import pytest
import torch
from safetensors.torch import load_file

from engine.device.attention import StepAttention
from engine.models.loader import facts
from matrix.zoo import card
from matrix.zoo.checkpoint import read_llama
from matrix.zoo.evaluate import data_hash
from matrix.zoo.recipes import DATA, RECIPES
from matrix.zoo.registry import CHECKPOINTS, NAMES
from matrix.zoo_facts import zoo_facts

pytestmark = pytest.mark.register(est_seconds=12, tier="cpu", stage="pr")

TARGETS = ["llama-mini", "llama-mini-standalone"]


@pytest.mark.parametrize("name", TARGETS)
def test_llama_keys_shapes_and_dtypes(name):
    shape = RECIPES[name].shape
    tensors = load_file(CHECKPOINTS / name / "model.safetensors")
    assert len(tensors) == 3 + 9 * shape.layers
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert tensors["model.embed_tokens.weight"].shape == (shape.vocab, shape.hidden)
    assert tensors["lm_head.weight"].shape == (shape.vocab, shape.hidden)
    keys = shape.kv_heads * shape.head_dim
    assert tensors["model.layers.0.self_attn.k_proj.weight"].shape == (keys, shape.hidden)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (shape.hidden, shape.intermediate)


def test_eagle3_keys_shapes_and_the_draft_vocabulary():
    recipe = RECIPES["llama-mini-eagle3"]
    shape = recipe.shape
    tensors = load_file(CHECKPOINTS / recipe.name / "model.safetensors")
    layer = [f"midlayer.{norm}.weight" for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")]
    layer += [f"midlayer.self_attn.{each}_proj.weight" for each in "qkvo"]
    layer += [f"midlayer.mlp.{each}_proj.weight" for each in ("gate", "up", "down")]
    rest = {"embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert set(tensors) == {*layer, *rest}
    assert tensors["fc.weight"].shape == (shape.hidden, 3 * RECIPES["llama-mini"].shape.hidden)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (shape.heads * shape.head_dim, 2 * shape.hidden)
    assert tensors["lm_head.weight"].shape == (recipe.draft_vocab, shape.hidden)
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    kept = tensors["d2t"] + torch.arange(recipe.draft_vocab)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), kept)


@pytest.mark.parametrize("algorithm", ["none", "standalone", "eagle3"])
def test_facts_of_recipes_are_facts_of_checkpoints(algorithm):
    draft = None if algorithm == "none" else CHECKPOINTS / f"llama-mini-{algorithm}"
    read, said = facts(CHECKPOINTS / "llama-mini", draft, "cpu"), zoo_facts(algorithm)
    for field in ("architecture", "vocab_size", "hidden_size", "num_layers", "context_length", "device_kind"):
        assert getattr(read, field) == getattr(said, field), field
    assert (read.draft is None) == (said.draft is None)
    if read.draft and said.draft:
        for field in ("architecture", "vocab_size", "hidden_size", "draft_vocab_size"):
            assert getattr(read.draft, field) == getattr(said.draft, field), field
        if algorithm == "eagle3":
            assert read.draft.target_hidden_size == said.draft.target_hidden_size


@pytest.mark.parametrize("name", TARGETS)
@torch.inference_mode()
def test_transformers_loads_it_unchanged_and_gives_the_same_logits(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import LlamaForCausalLM

    model, loading = LlamaForCausalLM.from_pretrained(CHECKPOINTS / name, dtype=torch.float32, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(2, 768, (3, 40), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=tokens).logits
    ours, _ = read_llama(CHECKPOINTS / name, RECIPES[name], torch.device("cpu"))(tokens)
    assert (ours - expected).abs().max() < 1e-4
    assert (_engine_logits(name, tokens) - expected).abs().max() < 1e-4


def _engine_logits(name, tokens):
    from engine.device.pool import KVPool
    from engine.models.loader import load_target

    model = load_target(CHECKPOINTS / name, "cpu", torch.float32)
    rows, width = tokens.shape
    pool = KVPool(model.kv, rows * width + 1, 1, torch.float32, "cpu")
    slots = 1 + torch.arange(rows * width).view(rows, width)
    bias = torch.full((width, width), float("-inf")).triu(1).expand(rows, 1, width, width)
    positions = torch.arange(width).expand(rows, width)
    return model.logits(model.forward(tokens, positions, StepAttention(pool, slots, slots, bias))[0])


@pytest.mark.parametrize("name", NAMES)
def test_cards_tell_parameters_data_and_recipe(name):
    known = card.read(CHECKPOINTS / name)
    tensors = load_file(CHECKPOINTS / name / "model.safetensors")
    assert known.parameters == sum(t.numel() for key, t in tensors.items() if key not in ("d2t", "t2d"))
    assert known.data_hash == data_hash(DATA)
    assert known.training["steps"] == RECIPES[name].fit.steps == known.recipe["fit"]["steps"]
    assert known.recipe["data"]["test_mix"] == list(DATA.test_mix)


def test_the_target_errs_but_not_much():
    known = card.read(CHECKPOINTS / "llama-mini")
    assert 0.60 <= known.accuracy["test"]["share"] <= 0.95
    assert known.accuracy["test"]["total"] == DATA.test_problems
    assert known.accuracy["heldout"]["share"] > 0
    assert "accuracy test: 83.1% of 1000 [80.7%, 85.3%]" in "\n".join(card.lines(known))


@pytest.mark.parametrize("name", ["llama-mini-standalone", "llama-mini-eagle3"])
def test_drafts_pay_and_are_not_perfect(name):
    known = card.read(CHECKPOINTS / name)
    assert 2.5 < known.acceptance["length"]["3"] < 3.8
    assert len(known.acceptance["rate"]) == 7
