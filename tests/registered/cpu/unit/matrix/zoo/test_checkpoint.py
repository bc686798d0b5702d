import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from specmatrix.engine.models.config import read_raw
from specmatrix.engine.models.loader import facts
from specmatrix.matrix.cells.cell import model_facts
from specmatrix.matrix.zoo import card
from specmatrix.matrix.zoo.bundled_net import DeepseekNet, HybridNet
from specmatrix.matrix.zoo.checkpoint import read_net
from specmatrix.matrix.zoo.config_json import config_of
from specmatrix.matrix.zoo.evaluate import data_hash, greedy
from specmatrix.matrix.zoo.net import FINAL, Cache
from specmatrix.matrix.zoo.oracle import DRAFTS, RotatedDraft
from specmatrix.matrix.zoo.registry import CHECKPOINTS, DATA, NAMES, RECIPES
from tests.support.refusals import refusal

MODELS = [name for name, recipe in RECIPES.items() if recipe.kind in ("target", "standalone")]
COPIES = ("shared_head.head.weight", "embed_tokens.weight")
BUNDLED = ("model.layers.4.", "model.layers.5.", "mtp.")


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
    assert [type(model).__name__] == shape.architectures
    assert not any(loading[kind] for kind in ("missing_keys", "mismatched_keys"))
    # transformers leaves bundled layers to its own multi-token prediction.
    assert all(key.startswith(BUNDLED) for key in loading["unexpected_keys"])
    tokens = torch.randint(2, 768, (3, 120), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=tokens).logits
    ours, _ = read_net(folder, RECIPES[name], torch.device("cpu"))(tokens)
    assert expected.abs().max() > 10.0
    assert (ours - expected).abs().max() < (1e-3 if hasattr(shape, "partial_rotary_factor") else 1e-4)
    if getattr(shape, "sliding_window", None):
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
    draft, states = RotatedDraft(net.bundled(), tokens[0].tolist(), final[0]), []
    for depth in range(2):
        state, ours = draft.after([39], [tuple(ids[0, :depth].tolist())], [states])
        assert (ours[0] - logits[0, depth]).abs().max() < 1e-4
        states.append(state[0])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_decoding_with_a_cache_is_decoding_without(name):
    net = read_net(CHECKPOINTS / name, RECIPES[name], torch.device("cpu"))
    tokens = torch.randint(2, 768, (2, 70), generator=torch.Generator().manual_seed(3))
    whole, _ = net(tokens)
    cache = Cache()
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
    target = RECIPES[recipe.target] if recipe.target else None
    assert read_raw(CHECKPOINTS / name) == json.loads(json.dumps(config_of(recipe, target)))


def test_shapes_differ_wherever_a_layout_allows_it_and_other_engines_serve_them():
    """transformers' LlamaConfig wants heads that divide the hidden size, vLLM heads of one of these widths."""
    for target, drafts in DRAFTS.items():
        for name in set(drafts.values()) - {target}:
            ours, theirs = RECIPES[name], RECIPES[target].shape
            assert ours.shape.intermediate_size != theirs.intermediate_size
            assert ours.shape.num_attention_heads != theirs.num_attention_heads
            assert target == "deepseek-mini" or ours.shape.num_hidden_layers != theirs.num_hidden_layers
    shapes = {
        (recipe.shape.hidden_size, recipe.shape.num_hidden_layers, recipe.form) for recipe in map(RECIPES.get, DRAFTS)
    }
    assert len(shapes) == len(DRAFTS)
    for recipe in RECIPES.values():
        if recipe.bundled_fit is None:
            assert recipe.shape.head_dim in (32, 64, 80, 96, 112, 128)
            free = recipe.shape.model_type == "qwen3" or recipe.name == "qwen35-mini-eagle3"
            assert free or recipe.shape.hidden_size % recipe.shape.num_attention_heads == 0


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
