"""config.json of every layout in the zoo, as transformers and the serving engines read it."""

from typing import Any

from specmatrix.matrix.zoo.recipes import Dflash2Parts, HybridShape, LatentShape, ModelShape, Recipe
from specmatrix.matrix.zoo.tokenizer import BOS_ID, EOS_ID

ARCHITECTURES = {
    ("llama", "target"): "LlamaForCausalLM",
    ("llama", "standalone"): "LlamaForCausalLM",
    ("llama", "eagle"): "LlamaForCausalLMEagle",
    ("llama", "eagle3"): "LlamaForCausalLMEagle3",
    ("qwen3", "target"): "Qwen3ForCausalLM",
    ("qwen3", "standalone"): "Qwen3ForCausalLM",
    ("qwen3", "dflash"): "DFlashDraftModel",
    ("qwen3", "dspark"): "DSparkDraftModel",
    ("deepseek", "target"): "DeepseekV3ForCausalLM",
    ("mistral", "target"): "MistralForCausalLM",
    ("qwen3_next", "target"): "Qwen3NextForCausalLM",
    ("qwen3_5", "target"): "Qwen3_5ForCausalLM",
}
MODEL_TYPES = {"deepseek": "deepseek_v3", "qwen3_5": "qwen3_5_text"}  # of families with another name


def architecture_of(recipe: Recipe) -> str:
    """The name in config.json's `architectures`."""
    return "DFlash2DraftModel" if recipe.dflash2 else ARCHITECTURES[recipe.family, recipe.kind]


def config_of(recipe: Recipe, target: Recipe | None) -> dict[str, Any]:
    """config.json of a recipe; `target` is the model that a draft was made for."""
    shape = recipe.shape
    config: dict[str, Any] = {
        "architectures": [architecture_of(recipe)],
        "model_type": MODEL_TYPES.get(recipe.family, recipe.family),
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "torch_dtype": "float16",
    }
    if isinstance(shape, HybridShape):
        config |= hybrid_fields(shape) | {"rope_scaling": None}
    else:
        config |= _latent(shape) if isinstance(shape, LatentShape) else _dense(shape)
    if recipe.family == "llama":
        config["mlp_bias"] = False
    if recipe.family == "qwen3" and isinstance(shape, ModelShape):
        config |= _windows(shape)
    if recipe.family == "mistral" and isinstance(shape, ModelShape):
        config["sliding_window"] = shape.window
    if recipe.kind == "standalone" and recipe.parallel:
        config |= {"pard_token": recipe.mask_id, "spd_type": "pard"}
    if target is not None:
        config |= _draft(recipe, target)
    return config


def _dense(shape: ModelShape) -> dict[str, Any]:
    return {
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
    }


def _windows(shape: ModelShape) -> dict[str, Any]:
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {
        "use_sliding_window": bool(shape.sliding),
        "sliding_window": shape.window if shape.sliding else None,
        "max_window_layers": shape.layers,
        "layer_types": [kinds[index in shape.sliding] for index in range(shape.layers)],
    }


def _latent(shape: LatentShape) -> dict[str, Any]:
    return {
        "num_key_value_heads": shape.heads,
        "q_lora_rank": shape.query_rank,
        "kv_lora_rank": shape.latent_rank,
        "qk_nope_head_dim": shape.plain_dim,
        "qk_rope_head_dim": shape.head_dim,
        "v_head_dim": shape.value_dim,
        "n_routed_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.expert_intermediate,
        "n_shared_experts": shape.shared,
        "n_group": shape.groups,
        "topk_group": shape.chosen_groups,
        "first_k_dense_replace": shape.dense_layers,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": shape.routed_scale,
        "rope_interleave": True,
        "num_nextn_predict_layers": shape.bundled,
        "tie_word_embeddings": False,
    }


def hybrid_fields(shape: HybridShape) -> dict[str, Any]:
    """The fields of Qwen3-Next, or without experts of Qwen3.5."""
    kinds = {True: "full_attention", False: "linear_attention"}
    part = shape.head_dim / shape.width
    fields: dict[str, Any] = {
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta, "partial_rotary_factor": part},
        "partial_rotary_factor": part,
        "layer_types": [kinds[not (index + 1) % shape.interval] for index in range(shape.layers)],
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.key_dim,
        "linear_value_head_dim": shape.value_dim,
        "linear_conv_kernel_dim": shape.taps,
    }
    if not shape.experts:
        return fields | {"mtp_num_hidden_layers": shape.bundled}
    return fields | {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.expert_intermediate,
        "shared_expert_intermediate_size": shape.expert_intermediate,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "num_nextn_predict_layers": shape.bundled,
    }


def dflash2_fields(parts: Dflash2Parts) -> dict[str, Any]:
    """What the published drafts have in `dflash_config`."""
    return {
        "conv_kernel_size": parts.taps,
        "conv_group_size": parts.group,
        "selector_rank": parts.rank,
        "selector_top_k": parts.candidates,
    }


def _draft(recipe: Recipe, target: Recipe) -> dict[str, Any]:
    if recipe.kind == "eagle3":
        own = {"draft_vocab_size": recipe.draft_vocab} if recipe.draft_vocab else {}
        own |= {"ptd_token_id": recipe.mask_id} if recipe.parallel else {}
        return own | {
            "target_hidden_size": target.shape.hidden,
            # vLLM's ids name the states, those of SGLang's group the layers whose outputs these are.
            "eagle_aux_hidden_state_layer_ids": [index + 1 for index in recipe.aux_layers],
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(recipe.aux_layers),
                "use_aux_hidden_state": True,
            },
        }
    if recipe.kind == "dflash":
        parts = {} if recipe.dflash2 is None else dflash2_fields(recipe.dflash2)
        return {
            "block_size": recipe.block,
            "num_target_layers": target.shape.layers,
            "dflash_config": {"mask_token_id": recipe.mask_id, "target_layer_ids": list(recipe.aux_layers)} | parts,
        }
    if recipe.heads is not None:
        return {
            "block_size": recipe.block - 1,
            "num_target_layers": target.shape.layers,
            "mask_token_id": recipe.mask_id,
            "target_layer_ids": list(recipe.aux_layers),
            "markov_head_type": recipe.heads.kind,
            "markov_rank": recipe.heads.rank,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "sample_from_anchor": recipe.heads.from_anchor,
        }
    return {}
