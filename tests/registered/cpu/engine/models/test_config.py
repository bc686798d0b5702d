"""config.json: what is read, and every refusal."""

from __future__ import annotations

import json

import pytest

from engine.core.errors import ConfigError
from engine.models.config import load_model_config

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EAGLE = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}


@pytest.fixture
def read(tmp_path):
    def load(raw):
        (tmp_path / "config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return load_model_config(tmp_path)

    return load


def test_defaults_are_those_of_transformers(read):
    config = read(LLAMA)
    assert (config.head_dim, config.norm_eps, config.context_length) == (12, 1e-6, 2048)
    assert (config.tie_embeddings, config.rope.theta, config.rope.kind) == (False, 10000.0, "default")


def test_key_heads_default_to_heads(read):
    assert read(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4


def test_eagle3_fields(read):
    given = {"draft_vocab_size": 41, "target_hidden_size": 64}
    config = read(EAGLE | given | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4, 5]}})
    assert (config.draft_vocab_size, config.target_hidden_size, config.aux_layers_of(9)) == (41, 64, (1, 5, 6))
    assert config.is_eagle3
    bare = read(EAGLE)
    assert (bare.draft_vocab_size, bare.target_hidden_size, bare.aux_layers_of(32)) == (97, 48, (2, 16, 29))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ('{"architectures": [', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
        ("[1]", "config.json must hold a JSON object, got list"),
        ({}, "architectures None is not supported; allowed: LlamaForCausalLM, LlamaForCausalLMEagle3"),
        (LLAMA | {"architectures": ["GPT2LMHeadModel"]}, r"architectures \['GPT2LMHeadModel'\] is not supported"),
        (LLAMA | {"attention_bias": True}, "attention_bias = True is not supported; it must be absent"),
        (LLAMA | {"mlp_bias": True}, "mlp_bias = True is not supported; it must be absent"),
        (LLAMA | {"quantization_config": {"bits": 4}}, r"quantization_config = \{'bits': 4\} is not supported"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; allowed: 'silu'"),
        (LLAMA | {"vocab_size": 0}, "vocab_size must be a positive integer, got 0"),
        (LLAMA | {"vocab_size": True}, "vocab_size must be a positive integer, got True"),
        (LLAMA | {"hidden_size": None}, "hidden_size must be a positive integer, got None"),
        (LLAMA | {"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        (LLAMA | {"head_dim": 7}, "head_dim 7 must be even"),
        (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps must be a positive number, got 0"),
        (EAGLE | {"num_hidden_layers": 2}, "num_hidden_layers must be 1 for an EAGLE-3 draft, got 2"),
        (
            EAGLE | {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state false is not supported; allowed: true",
        ),
        (
            EAGLE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1]}},
            r"eagle_aux_hidden_state_layer_ids must be a list of layer ids, got \[-1\]",
        ),
    ],
)
def test_refusals(read, raw, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read(raw)


def test_missing_folder_and_file(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint '.*nowhere' does not exist; give a folder with config.json"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config.json is missing; a checkpoint folder needs it"):
        load_model_config(tmp_path)
