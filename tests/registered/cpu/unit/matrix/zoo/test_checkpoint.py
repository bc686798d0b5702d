from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from specmatrix.engine.models.loader import facts
from specmatrix.matrix.cells.model_facts import model_facts
from specmatrix.matrix.zoo import card
from specmatrix.matrix.zoo.checkpoint import read_net
from specmatrix.matrix.zoo.decode import greedy
from specmatrix.matrix.zoo.deepseek_net import DeepseekNet
from specmatrix.matrix.zoo.evaluate import data_hash, recipe_of
from specmatrix.matrix.zoo.hybrid_net import HybridNet
from specmatrix.matrix.zoo.layouts import architecture_of
from specmatrix.matrix.zoo.net import FINAL, Cache
from specmatrix.matrix.zoo.oracle_drafts import DRAFTS, RotatedDraft
from specmatrix.matrix.zoo.recipes import DATA, RECIPES, HybridShape, LatentShape, ModelShape
from specmatrix.matrix.zoo.registry import CHECKPOINTS, NAMES
from tests.support.refusals import refusal

MODELS = [name for name, recipe in RECIPES.items() if recipe.kind in ("target", "standalone")]
LLAMAS = ["llama-mini", "llama-mini-standalone"]
COPIES = ("shared_head.head.weight", "embed_tokens.weight")
BUNDLED = ("model.layers.4.", "model.layers.5.", "mtp.")


@pytest.mark.parametrize("name", LLAMAS)
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


@pytest.mark.parametrize("target", DRAFTS)
def test_the_facts_of_the_axes_are_those_of_checkpoints(target):
    for draft in (None, *(name for name in DRAFTS[target].values() if name != target)):
        read = facts(CHECKPOINTS / target, draft and CHECKPOINTS / draft, "cpu")
        read = replace(read, tokenizer_hash=None, gpus=0)
        for part in ("draft", "bundled"):
            if (found := getattr(read, part)) is not None:
                read = replace(read, **{part: replace(found, tokenizer_hash=None)})
        assert read == model_facts(target, draft)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_transformers_loads_it_unchanged_and_gives_the_same_logits(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM

    folder = CHECKPOINTS / name
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    shape = RECIPES[name].shape
    assert type(model).__name__ == architecture_of(RECIPES[name])
    assert not any(loading[kind] for kind in ("missing_keys", "mismatched_keys"))
    # transformers leaves bundled layers to its own multi-token prediction.
    assert all(key.startswith(BUNDLED) for key in loading["unexpected_keys"])
    tokens = torch.randint(2, 768, (3, 120), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=tokens).logits
    ours, _ = read_net(folder, RECIPES[name], torch.device("cpu"))(tokens)
    assert expected.abs().max() > 10.0
    assert (ours - expected).abs().max() < (1e-3 if isinstance(shape, HybridShape) else 1e-4)
    if getattr(shape, "sliding", ()):
        model.config.sliding_window = 120
        assert (model(input_ids=tokens).logits - expected).abs().max() > 1.0


@torch.inference_mode()
def test_bundled_layers_agree_with_transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    recipe = RECIPES["deepseek-mini"]
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINTS / recipe.name, dtype=torch.float32)
    # transformers knows the bundled layer of the published model alone by its number.
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.4.*", r"model\.layers\.5.*"]
    bundled = MtpModel.from_pretrained(model)
    net = read_net(CHECKPOINTS / recipe.name, recipe, torch.device("cpu"))
    assert isinstance(net, DeepseekNet)
    tokens = torch.randint(2, 768, (1, 40), generator=torch.Generator().manual_seed(1))
    final = net(tokens, aux=(FINAL,))[1]
    assert final is not None
    assert (final - model.model(input_ids=tokens).last_hidden_state).abs().max() < 1e-4
    ids, logits, _ = bundled(
        input_ids=tokens[:, 1:],
        last_hidden_states=final[:, :-1],
        attention_mask=torch.ones(1, 39, dtype=torch.int64),
        position_ids=torch.arange(1, 40)[None],
        mtp_cache=MtpCache(config=model.config.get_mtp_config()),
    )
    draft, states = RotatedDraft([net.bundled(0), net.bundled(1)], tokens[0].tolist(), final[0]), []
    for depth in range(2):
        state, ours = draft.after(39, [tuple(ids[0, :depth].tolist())], [states])
        assert (ours[0] - logits[0, depth]).abs().max() < 1e-4
        states.append(state[0])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_decoding_with_a_cache_is_decoding_without(name):
    net = read_net(CHECKPOINTS / name, RECIPES[name], torch.device("cpu"))
    tokens = torch.randint(2, 768, (2, 70), generator=torch.Generator().manual_seed(3))
    whole, _ = net(tokens)
    cache = Cache(70)
    parts = [net(tokens[:, :50], cache)[0], *(net(tokens[:, i : i + 1], cache)[0] for i in range(50, 70))]
    hybrid = isinstance(net, HybridNet)  # transformers' chunks and its recurrence are two sums
    assert (torch.cat(parts, 1) - whole).abs().max() < (3e-3 if hybrid else 1e-4)
    prompts = [row[:length] for row, length in zip(tokens.tolist(), (40, 23), strict=True)]
    assert greedy(net, prompts, 12) == [greedy(net, [prompt], 12)[0] for prompt in prompts]


@pytest.mark.parametrize("name", NAMES)
def test_cards_name_parameters_data_and_recipe(name):
    known, recipe = card.read(CHECKPOINTS / name), RECIPES[name]
    tensors = load_file(CHECKPOINTS / name / "model.safetensors")
    others = ("d2t", "t2d", "e_score_correction_bias", *(f"{at}{copy}" for at in BUNDLED for copy in COPIES))
    assert known.parameters == sum(t.numel() for key, t in tensors.items() if not key.endswith(others))
    assert known.data_hash == data_hash(DATA)
    assert known.training["steps"] == recipe.fit.steps == known.recipe["fit"]["steps"]
    assert known.recipe["data"]["test_mix"] == list(DATA.test_mix)
    # Older cards lack what later recipes added; what they say must be what the recipe says.
    plain = recipe_of(recipe, DATA)
    assert all(plain["shape"][key] == value for key, value in known.recipe["shape"].items())


def test_shapes_differ_wherever_a_layout_allows_it_and_other_engines_serve_them():
    """transformers' LlamaConfig wants heads that divide the hidden size, vLLM heads of one of these widths."""
    for target, drafts in DRAFTS.items():
        for name in set(drafts.values()) - {target}:
            ours, theirs = RECIPES[name], RECIPES[target].shape
            assert ours.shape.intermediate != theirs.intermediate and ours.shape.heads != theirs.heads
            assert isinstance(theirs, LatentShape) or ours.shape.layers != theirs.layers
    shapes = {(RECIPES[name].shape.hidden, RECIPES[name].shape.layers, RECIPES[name].form) for name in DRAFTS}
    assert len(shapes) == len(DRAFTS)
    for recipe in RECIPES.values():
        if isinstance(recipe.shape, ModelShape):
            assert recipe.shape.head_dim in (32, 64, 80, 96, 112, 128)
            free = recipe.family == "qwen3" or recipe.name == "qwen35-mini-eagle3"
            assert free or recipe.shape.hidden % recipe.shape.heads == 0


def test_heads_without_a_vocabulary_of_their_own_bring_no_embedding_and_no_head():
    layer = [f"self_attn.{each}_proj" for each in "qkvo"] + [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm"]
    normed = [*layer, *norms]
    expected = {
        "llama-mini-eagle": ["fc", *(f"layers.0.{each}" for each in [*layer, norms[1]])],
        "qwen3-mini-eagle3": [
            "fc",
            "norm",
            *(f"midlayer.{each}" for each in [*normed, "hidden_norm"]),
            *(f"layers.1.{each}" for each in normed),
        ],
        "llama-mini-dflash": [
            *("fc", "norm", "hidden_norm"),
            *(f"layers.{i}.{each}" for i in (0, 1) for each in [*normed, "self_attn.q_norm", "self_attn.k_norm"]),
        ],
    }
    for name, names in expected.items():
        tensors = load_file(CHECKPOINTS / name / "model.safetensors")
        assert set(tensors) == {f"{each}.weight" for each in names}
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}


def test_deepseeks_checkpoint_is_that_of_the_published_model():
    tensors = load_file(CHECKPOINTS / "deepseek-mini" / "model.safetensors")
    shape = RECIPES["deepseek-mini"].shape
    assert isinstance(shape, LatentShape)
    assert "model.layers.0.mlp.gate_proj.weight" in tensors and "model.layers.0.mlp.gate.weight" not in tensors
    for index in (1, 2, 3, 4, 5):
        at = f"model.layers.{index}."
        bias = tensors[f"{at}mlp.gate.e_score_correction_bias"]
        assert bias.dtype == torch.float32 and bias.abs().max() > 0.01
        assert tensors[f"{at}mlp.experts.7.down_proj.weight"].shape == (shape.hidden, shape.expert_intermediate)
        assert tensors[f"{at}self_attn.kv_a_proj_with_mqa.weight"].shape == (32 + 16, shape.hidden)
    for at in BUNDLED[:2]:
        assert torch.equal(tensors[f"{at}shared_head.head.weight"], tensors["lm_head.weight"])
        assert torch.equal(tensors[f"{at}embed_tokens.weight"], tensors["model.embed_tokens.weight"])
        assert tensors[f"{at}eh_proj.weight"].shape == (shape.hidden, 2 * shape.hidden)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "it nests too deeply"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b'{"nickname": 1}', "Card.__init__() got an unexpected keyword argument 'nickname'"),
    ],
)
def test_a_damaged_card_is_named(tmp_path, text, why):
    (tmp_path / "card.json").write_bytes(text)
    card_file = tmp_path / "card.json"
    assert (
        refusal(card.read, tmp_path) == f"model card {card_file} cannot be read ({why}); restore it from the repository"
    )
