"""The DeepSeek-V3 fields of config.json: latent attention and a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specmatrix.engine.models.config_reader import ConfigReader
from specmatrix.errors import ConfigError, shown

DEEPSEEK_ARCHITECTURES: Final = ("DeepseekV3ForCausalLM",)
# Fields with a single supported value, the last element of each row.
ONLY: Final = (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1))


@dataclass(frozen=True, slots=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    A query and a key have `plain_dim` unrotated numbers per head and `rotated_dim` rotated ones; all heads share one
    rotated key. Keys and values come from a latent of `rank` numbers. query_rank: None for queries without a latent.
    interleaved: the checkpoint stores rotated numbers as adjacent pairs, not as halves.
    """

    rank: int
    query_rank: int | None
    plain_dim: int
    rotated_dim: int
    value_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """A mixture of experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

    Each token uses the best `chosen` of `routed` experts of intermediate size `inner`, out of the best `open_groups` of
    `groups`; their weights are `scale` times their scores, normalised to sum to 1 if `normed`. shared: the
    intermediate size of what applies to all tokens. The first `dense` layers have a dense feed-forward part.
    softmax: scores are a softmax, without a correction bias, and the shared expert has a gate, as in Qwen2-MoE; else
    scores are sigmoids.
    """

    routed: int
    chosen: int
    inner: int
    shared: int
    groups: int
    open_groups: int
    normed: bool
    scale: float
    dense: int
    softmax: bool = False


def read_mla(architecture: str, fields: ConfigReader) -> MLAConfig | None:
    """The attention fields of a config.json; None for other architectures. ConfigError on a missing size."""
    if architecture not in DEEPSEEK_ARCHITECTURES:
        return None
    rotated = fields.size("qk_rope_head_dim", 64)
    if rotated % 2:
        raise ConfigError(
            f"{fields.file}: qk_rope_head_dim {rotated} must be even, because rotary embeddings rotate pairs"
        )
    return MLAConfig(
        rank=fields.size("kv_lora_rank"),
        query_rank=fields.size("q_lora_rank") if fields.raw.get("q_lora_rank") is not None else None,
        plain_dim=fields.size("qk_nope_head_dim"),
        rotated_dim=rotated,
        value_dim=fields.size("v_head_dim"),
        interleaved=fields.flag("rope_interleave", True),
    )


def read_moe(architecture: str, fields: ConfigReader) -> MoEConfig | None:
    """The feed-forward fields of a config.json; None for other architectures. ConfigError on inconsistent sizes."""
    if architecture not in DEEPSEEK_ARCHITECTURES:
        return None
    for name, value in ONLY:
        if (got := fields.raw.get(name, value)) != value:
            raise ConfigError(f"{fields.file}: {name} {shown(got)} is not supported; allowed: {value!r}")
    inner = fields.size("moe_intermediate_size")
    experts = MoEConfig(
        routed=fields.size("n_routed_experts"),
        chosen=fields.size("num_experts_per_tok"),
        inner=inner,
        shared=inner * fields.size("n_shared_experts"),
        groups=fields.size("n_group", 1),
        open_groups=fields.size("topk_group", 1),
        normed=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 2.5),
        dense=fields.count("first_k_dense_replace", 3),
    )
    _fit(experts, fields.file)
    return experts


def _fit(experts: MoEConfig, file: Path) -> None:
    """Raise ConfigError unless every token can choose `chosen` experts from `open_groups` groups."""
    e = experts
    if e.routed % e.groups or e.routed // e.groups < 2:
        raise ConfigError(
            f"{file}: n_routed_experts {e.routed} must be a multiple of n_group {e.groups} with at least 2 per group"
        )
    if e.open_groups > e.groups:
        raise ConfigError(f"{file}: topk_group {e.open_groups} must be at most n_group {e.groups}")
    if e.chosen > e.open_groups * (e.routed // e.groups):
        raise ConfigError(
            f"{file}: num_experts_per_tok {e.chosen} must be at most the {e.open_groups * (e.routed // e.groups)} "
            f"experts in topk_group {e.open_groups} groups"
        )
