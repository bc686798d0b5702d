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
        ('{"architectures": [', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
        ({}, "architectures None is not supported; allowed: LlamaForCausalLM, .*LlamaForCausalLMEagle3"),
        (LLAMA | {"architectures": ["GPT2LMHeadModel"]}, r"architectures \['GPT2LMHeadModel'\] is not supported"),
        (LLAMA | {"attention_bias": True}, "attention_bias = True is not supported; it must be absent"),
        (LLAMA | {"mlp_bias": True}, "mlp_bias = True is not supported; it must be absent"),
        (LLAMA | {"quantization_config": {"bits": 4}}, r"quantization_config = \{'bits': 4\} is not supported"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; allowed: 'silu'"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported; allowed: 1"),
        (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor 0.25 is not supported"),
        (LLAMA | {"dtype": "complex64"}, "dtype must be one of float32, bfloat16, float16, float64, got 'complex64'"),
        (LLAMA | {"torch_dtype": 5}, "torch_dtype must be one of float32, bfloat16, float16, float64, got 5"),
        (LLAMA | {"sliding_window": -1}, "sliding_window must be a positive integer, got -1"),
        (LLAMA | {"use_sliding_window": "x"}, "use_sliding_window must be true or false, got 'x'"),
        (LLAMA | {"head_dim": 2**20}, "head_dim must be at most 65536, got 1048576"),
        (LLAMA | {"rope_theta": 1e-300}, "rope_theta 1e-300 and the numbers of rope_type 'default' give frequencies"),
        (LLAMA | {"vocab_size": 0}, "vocab_size must be a positive integer, got 0"),
        (LLAMA | {"rope_theta": 1, "rope_scaling": YARN}, "rope_theta 1 and the numbers of rope_type 'yarn' give"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 4096, got 1000000000"),
        (LLAMA | {"vocab_size": True}, "vocab_size must be a positive integer, got True"),
        (LLAMA | {"vocab_size": 2**31}, "vocab_size must be at most 2147483647, got 2147483648"),
        (DEEPSEEK | {"num_nextn_predict_layers": 4097}, "num_nextn_predict_layers must be at most 4096, got 4097"),
        (LLAMA | {"rms_norm_eps": 10**400}, r"rms_norm_eps must be a positive number, got 10+\.\.\.$"),
        (f'{{"hidden_size": {"9" * 5000}}}', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
        (LLAMA | {"hidden_size": None}, "hidden_size must be a positive integer, got None"),
        (HYBRID | {"architectures": ["Qwen3_5ForConditionalGeneration"]}, "text_config must be an object .*, got None"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": [1]}, r"text_config must .*, got \[1\]"),
        (LLAMA | {"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window must be a positive"),
        (QWEN3 | {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers must be an integer of at"),
        (QWEN3 | {"layer_types": ["full_attention"]}, "layer_types must be a list of 3 names, one for each layer"),
        (
            QWEN3 | {"layer_types": ["chunked_attention"] * 3},
            "layer_types 'chunked_attention' is not supported; allowed",
        ),
        (QWEN3 | {"layer_types": ["sliding_attention"] * 3}, "layer_types contains 'sliding_attention', which needs"),
        (HYBRID | {"linear_num_value_heads": 3}, "linear_num_value_heads 3 must be a multiple of linear_num_key_heads"),
        (HYBRID | {"layer_types": ["full_attention"]}, "layer_types must be a list of 5 names, one for each layer"),
        (HYBRID | {"layer_types": ["linear_attention"] * 5}, "layer_types must contain both full_attention and"),
        (HYBRID | {"layer_types": ["sliding"] * 5}, "layer_types 'sliding' is not supported; allowed: full_attention"),
        (HYBRID | {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be an integer of at least 2, got 1"),
        (HYBRID | {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16' is not supported; allowed: 'float32'"),
        (HYBRID | {"partial_rotary_factor": 0.2}, "partial_rotary_factor 0.2 of head_dim 16 must rotate an even"),
        (DEEPSEEK | {"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 must be even"),
        (DEEPSEEK | {"kv_lora_rank": None}, "kv_lora_rank must be a positive integer, got None"),
        (DEEPSEEK | {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported; allowed: 'sigmoid'"),
        (DEEPSEEK | {"topk_method": "greedy"}, "topk_method 'greedy' is not supported; allowed: 'noaux_tc'"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported; allowed: 1"),
        (DEEPSEEK | {"norm_topk_prob": 1}, "norm_topk_prob must be true or false, got 1"),
        (DEEPSEEK | {"n_group": 3}, "n_routed_experts 8 must be a multiple of n_group 3 with at least 2 per group"),
        (DEEPSEEK | {"n_group": 8}, "n_routed_experts 8 must be a multiple of n_group 8 with at least 2 per group"),
        (DEEPSEEK | {"topk_group": 3}, "topk_group 3 must be at most n_group 2"),
        (DEEPSEEK | {"num_experts_per_tok": 5}, "num_experts_per_tok 5 must be at most the 4 experts in topk_group 1"),
        (LLAMA | {"head_dim": 7}, "head_dim 7 must be even"),
        (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps must be a positive number, got 0"),
        (EAGLE | {"norm_before_residual": 1}, "norm_before_residual must be true or false, got 1"),
        (EAGLE | {"norm_before_fc": True}, "norm_before_fc true is not supported; it must be absent"),
        (EAGLE | {"eagle_config": {"norm_before_fc": True}}, "eagle_config.norm_before_fc true is not supported; it"),
        (EAGLE | {"eagle_config": {"fc_norm": True}}, "eagle_config.fc_norm true is not supported; it must be absent"),
        (EAGLE | {IDS: [-1]}, rf"{IDS} must be a list of layer ids, got \[-1\]"),
        (
            EAGLE | {IDS: [0, 4], "eagle_config": {IDS: [0, 4]}},
            rf"\[0, 4\] differs from eagle_config.{IDS}.* \[1, 5\]; both",
        ),
        (DFLASH | {"dflash_config": {"mask_token_id": 1, "use_swa": True}}, "dflash_config.use_swa true is not"),
        (DFLASH | {"dflash_config": {"mask_token_id": 1, "causal": True}}, "dflash_config.causal true is not"),
        (
            DFLASH | {"dflash_config": {"mask_token_id": 1, "sample_from_anchor": True}},
            "dflash_config.sample_from_anchor true is not supported",
        ),
        (DFLASH | {"is_causal": True}, "is_causal true is not supported; it must be absent"),
        (DFLASH | {"dflash_config": {}}, "dflash_config.mask_token_id must be a token id, got None"),
        (DFLASH | {"dflash_config": {"mask_token_id": -1}}, "dflash_config.mask_token_id must be a token id, got -1"),
        (DFLASH | {"block_size": 1}, "block_size must be an integer of at least 2, got 1"),
        (DFLASH | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types 'sliding_attention' is not"),
        (
            DFLASH | {"use_sliding_window": True, "max_window_layers": 0},
            "use_sliding_window true is not supported in a DF",
        ),
        (LLAMA | {"pard_token": -1}, "pard_token must be a token id, got -1"),
        (EAGLE | {"ptd_token_id": "5"}, "ptd_token_id must be a token id, got '5'"),
        (EAGLE | {"parallel_drafting": True}, "parallel drafting needs one mask token, got {}; set pard_token or ptd_"),
        (
            LLAMA | {"pard_token": 1, "ptd_token_id": 2},
            "needs one mask token, got {'pard_token': 1, 'ptd_token_id': 2}",
        ),
        (
            LLAMA | {"pard_token": 1, "pard2_target_dim": 64},
            "pard2_target_dim true is not supported; it must be absent",
        ),
        (
            EAGLE1 | {"pard_token": 1},
            "pard_token is not supported in an EAGLE draft; allowed in one of EAGLE3 or a lang",
        ),
        (LLAMA | {"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'$"),
        (LLAMA | {"rms_norm_eps": float("inf")}, "rms_norm_eps must be a positive number, got inf$"),
        (LLAMA | {"rms_norm_eps": 2.0**128}, "rms_norm_eps must be a positive number, got 3.4"),
        (LLAMA | {"rope_theta": float("inf")}, "rope_theta must be a positive number for rope_type 'default', got"),
        (LLAMA | {"architectures": ["x" * 500]}, r"architectures \['x{198}\.\.\. is not supported"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, got 'no'$"),
        (EAGLE | {"eagle_config": {"use_aux_hidden_state": 1}}, "eagle_config.use_aux_hidden_state must be true or"),
        (DFLASH | {"layer_types": 5}, "layer_types must be a list, got 5$"),
        (DFLASH | {"layer_types": [["full_attention"]]}, r"layer_types \['full_attention'\] is not supported"),
        (DFLASH | {"dflash_config": {"mask_token_id": 1, "block_size": 10**9 * 3}}, "dflash_config.block_size must be"),
        (DFLASH | {"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, r"target_layer_ids must be a list"),
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
