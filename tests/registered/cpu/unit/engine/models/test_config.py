"""config.json: what is read, and every refusal."""

from __future__ import annotations

import json
import os

import pytest

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.config import load_model_config
from specmatrix.engine.models.deepseek.config import MLAConfig, MoEConfig
from specmatrix.engine.models.draft_config import IGNORED, DraftConfig
from specmatrix.engine.models.qwen3_next.config import DeltaNetConfig
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import CHECKPOINTS
from tests.support.tables import table

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
DEEPSEEK = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 56,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
}
HYBRID = LLAMA | {"architectures": ["Qwen3_5ForCausalLM"], "head_dim": 16, "num_hidden_layers": 5}
HYBRID |= {"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 6}
EAGLE = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
EAGLE1 = EAGLE | {"architectures": ["LlamaForCausalLMEagle"]}
DFLASH = LLAMA | {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 1}}
CONFIGS = {"LLAMA": LLAMA, "MISTRAL": MISTRAL, "QWEN3": QWEN3, "DEEPSEEK": DEEPSEEK, "HYBRID": HYBRID}
CONFIGS |= {"EAGLE": EAGLE, "EAGLE1": EAGLE1, "DFLASH": DFLASH}


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
    assert config.draft is None
    assert read(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4


def test_eagle3_fields(read):
    given = {"draft_vocab_size": 41, "target_hidden_size": 64}
    config = read(EAGLE | given | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4, 5]}})
    assert config.draft == DraftConfig((1, 5, 6), target_hidden_size=64, vocab_size=41)
    bare = read(EAGLE | {"num_hidden_layers": 2})
    assert bare.draft == DraftConfig(None, target_hidden_size=48, vocab_size=97)
    assert bare.draft.states_of(32) == (2, 16, 29)
    last = read(EAGLE | {"eagle_config": {"use_aux_hidden_state": False}})
    assert last.draft.states_of(32) == (FINAL,)


IDS = "eagle_aux_hidden_state_layer_ids"
YARN = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("given", "states"),
    [
        ({IDS: [0, 4, 5]}, (0, 4, 5)),
        ({"eagle_config": {IDS: [0, 4, 5]}}, (1, 5, 6)),
        ({IDS: [1, 5, 6], "eagle_config": {IDS: [0, 4, 5]}}, (1, 5, 6)),
        ({IDS: None, "eagle_config": {}}, (2, 16, 29)),
    ],
)
def test_eagle3_ids_at_the_top_name_states_and_nested_ones_layers(read, given, states):
    """vLLM's speculators write the former, SGLang, SpecForge and Model-Optimizer the latter."""
    assert read(EAGLE | given).draft.states_of(32) == states


def test_dflash_fields(read):
    config = read(DFLASH | {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 3]}, "block_size": 7})
    assert config.draft == DraftConfig((1, 4), 48, 97, layers=3, block_size=7) and config.mask_token == 5
    inner = read(DFLASH | {"dflash_config": {"mask_token_id": 5, "block_size": 4}, "block_size": 7})
    assert inner.draft.block_size == 4
    assert (read(DFLASH).draft.block_size, read(DFLASH).head_dim) == (16, 128), "heads are those of Qwen3"


@pytest.mark.parametrize("raw", [LLAMA, EAGLE])
@pytest.mark.parametrize(
    ("given", "token"),
    [
        ({"pard_token": 0, "spd_type": "pard"}, 0),
        ({"ptd_token_id": 96, "parallel_drafting": True}, 96),
        ({"pard_token": 5, "ptd_token_id": 5}, 5),
        ({"ptd_token_id": 5, "parallel_drafting": False}, None),
        ({"mask_token_id": 7, "parallel_drafting": True}, 7),
        ({"mask_token_id": 7, "ptd_token_id": 5}, 5),
        ({"pard_token": None, "mask_token_id": 5}, None),
    ],
)
def test_a_mask_token_by_vllms_names(read, raw, given, token):
    assert read(raw | given).mask_token == token


def test_a_block_draft_reads_the_last_layer_behind_the_final_norm(read):
    named = read(DFLASH | {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 3]}})
    assert (named.draft.states_of(4), named.draft.states_of(5)) == ((1, FINAL), (1, 4))
    assert read(EAGLE | {IDS: [1, 4]}).draft.states_of(4) == (1, 4), "an EAGLE-3 head reads it before the norm"


@pytest.mark.parametrize(
    ("layers", "target", "states"), [(5, 36, (2, 10, 18, 26, 34)), (1, 8, (5,)), (3, 12, (2, 6, 10)), (2, 4, (2, 2))]
)
def test_dflash_spreads_its_states_over_the_target(read, layers, target, states):
    """After layers 1, 9, 17, 25 and 33, for 36 layers and a draft of 5."""
    assert read(DFLASH | {"num_hidden_layers": layers}).draft.states_of(target) == states


def test_every_field_of_a_dflash_config_is_read_refused_or_listed_as_ignored(read):
    """A value of no field's type is refused where the field is read, and changes nothing where it is ignored."""
    raw = json.loads((CHECKPOINTS / "llama-mini-dflash" / "config.json").read_text())
    config = read(raw)
    for name in {*raw, *IGNORED}:
        for value in ("of another kind", -3.5):
            try:
                assert read(raw | {name: value}) == config and name in IGNORED
            except ConfigError as error:
                assert name not in IGNORED and name in str(error)
    for name in (*raw["dflash_config"], "block_size"):
        with pytest.raises(ConfigError, match=name):
            read(raw | {"dflash_config": raw["dflash_config"] | {name: "of another kind"}})
    for added in ({"scale_of_logits": 2.0}, {"dflash_config": {**raw["dflash_config"], "conv_kernel": 2}}):
        with pytest.raises(ConfigError, match="is not a known field of a DFLASH draft and may change what it computes"):
            read(raw | added)
    assert read(raw | {"scale_of_logits": None}) == config


def test_a_dflash_draft_below_its_first_windowed_layer_has_none(read):
    layered = DFLASH | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 5}
    assert read(layered | {"num_hidden_layers": 5}).windows == ()
    full = layered | {"num_hidden_layers": 2, "max_window_layers": 0, "layer_types": ["full_attention"] * 2}
    assert read(full).windows == ()


def test_qwen3_fields(read):
    config = read(QWEN3)
    assert (config.head_norms, config.windows, config.head_dim) == (True, (), 128)
    assert not read(LLAMA).head_norms
    assert read(QWEN3 | {"sliding_window": 7, "layer_types": ["full_attention"] * 3}).windows == ()
    used = QWEN3 | {"use_sliding_window": True}
    assert read(used | {"max_window_layers": 1, "sliding_window": 7}).windows == (None, 7, 7)
    assert read(used | {"max_window_layers": 0}).windows == (4096,) * 3
    mixed = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read(used | {"sliding_window": 7, "layer_types": mixed}).windows == (7, None, 7)


def test_mistral_fields(read):
    """transformers takes 4096 where config.json is silent, and no window where it says null."""
    assert read(MISTRAL).windows == (4096,) * 3
    assert read(MISTRAL | {"sliding_window": 7}).windows == (7,) * 3
    assert read(MISTRAL | {"sliding_window": None}).windows == ()
    assert read(MISTRAL).head_norms is False


def test_deepseek_fields(read):
    config = read(DEEPSEEK)
    assert config.latent == MLAConfig(32, None, 24, 16, 20, interleaved=True)
    assert config.experts == MoEConfig(8, 2, 56, 56, 2, 1, normed=True, scale=2.5, dense=3)
    assert (config.head_dim, config.bundled_layers) == (16, 0)
    other = read(
        DEEPSEEK
        | {"q_lora_rank": 48, "rope_interleave": False, "norm_topk_prob": False, "routed_scaling_factor": 1}
        | {"first_k_dense_replace": 0, "num_nextn_predict_layers": 2, "scoring_func": "sigmoid", "moe_layer_freq": 1}
        | {"num_key_value_heads": 128, "head_dim": 7}
    )
    assert (other.latent.query_rank, other.latent.interleaved) == (48, False)
    assert (other.experts.normed, other.experts.scale, other.experts.dense) == (False, 1.0, 0)
    assert (other.bundled_layers, other.head_dim) == (2, 16)
    assert (read(LLAMA).latent, read(LLAMA).experts) == (None, None)


def test_hybrid_fields(read):
    config = read(HYBRID | {"linear_value_head_dim": 12, "rope_parameters": {"partial_rotary_factor": 0.5}})
    assert config.delta == DeltaNetConfig((True, False) * 2 + (True,), 2, 6, 128, 12, 4, grouped=False)
    assert (config.rotary_dim, config.head_norms, config.experts) == (8, True, None)
    assert read(HYBRID).rotary_dim == 4 and (read(LLAMA).delta, read(LLAMA).rotary_dim) == (None, 12)
    sparse = HYBRID | {"architectures": ["Qwen3NextForCausalLM"], "norm_topk_prob": False, "intermediate_size": None}
    experts = MoEConfig(512, 10, 512, 512, 1, 1, normed=False, scale=1.0, dense=0, softmax=True)
    assert (read(sparse).experts, read(sparse).delta.grouped) == (experts, True)
    assert read(sparse | {"architectures": ["Qwen3_5MoeForCausalLM"]}).experts.normed


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        *((CONFIGS[name] | change, said) for name, rows in table(__file__).items() for change, said in rows),
        ('{"architectures": [', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
        ({}, "architectures None is not supported; allowed: LlamaForCausalLM, .*LlamaForCausalLMEagle3"),
        (LLAMA | {"rms_norm_eps": 10**400}, r"rms_norm_eps must be a positive number, got 10+\.\.\.$"),
        (f'{{"hidden_size": {"9" * 5000}}}', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": [1]}, r"text_config must .*, got \[1\]"),
        (HYBRID | {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16' is not supported; allowed: 'float32'"),
        (LLAMA | {"rms_norm_eps": float("inf")}, "rms_norm_eps must be a positive number, got inf$"),
        (LLAMA | {"rms_norm_eps": 2.0**128}, "rms_norm_eps must be a positive number, got 3.4"),
        (LLAMA | {"rope_theta": float("inf")}, "rope_theta must be a positive number for rope_type 'default', got"),
        (LLAMA | {"architectures": ["x" * 500]}, r"architectures \['x{198}\.\.\. is not supported"),
    ],
)
def test_refusals(read, raw, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read(raw)


def test_missing_folder_and_file(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint '.*nowhere' does not exist; pass a folder with config.json"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"^checkpoint 'x{199}\.\.\. does not exist; pass a folder"):
        load_model_config("x" * 5000)
    with pytest.raises(ConfigError, match=r"config.json is missing; a checkpoint folder needs it"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    ("put", "sentence"),
    [
        (lambda file: file.mkdir(), r"config.json cannot be read \(Is a directory\); a checkpoint folder needs it$"),
        (os.mkfifo, r"config.json cannot be read \(not a regular file\); a checkpoint folder needs it$"),
        (lambda file: file.symlink_to("/dev/zero"), r"config.json cannot be read \(not a regular file\); a checkpoint"),
        (lambda file: file.symlink_to(file), r"config.json cannot be read \(Too many levels of symbolic links\)"),
        (lambda file: file.write_text("[" * 10**5), r"config.json is not valid JSON \(it nests too deeply\); the file"),
        (lambda file: file.write_bytes(b"\xff"), r"config.json is not valid JSON \(it is not UTF-8 text\)"),
        (lambda file: file.write_text("3"), "config.json must hold a JSON object, got int$"),
    ],
    ids=["a folder", "a pipe", "a device", "a loop", "deep", "bytes", "a number"],
)
def test_a_config_json_that_is_something_else(tmp_path, put, sentence):
    put(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=sentence):
        load_model_config(tmp_path)
