"""The fields of config.json of hybrids: which layers are gated delta nets, their shape, and their experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from specmatrix.engine.device.pool import StateLayout
from specmatrix.engine.models.config_reader import MAX_LAYERS, ConfigReader
from specmatrix.engine.models.deepseek.config import MoEConfig
from specmatrix.errors import ConfigError, shown

SPARSE: Final = ("Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM")
HYBRID_ARCHITECTURES: Final = (*SPARSE, "Qwen3_5ForCausalLM")
KINDS: Final = ("full_attention", "linear_attention")
# Fields with a single supported value, the last element of each row.
ONLY: Final = (("decoder_sparse_step", 1), ("mlp_only_layers", []), ("mamba_ssm_dtype", "float32"))
MAX_TAPS: Final = 64


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """Gated delta nets (arXiv 2412.06464): for each layer of the model whether it is one, and their shape.

    Each of the `key_heads` serves heads / key_heads value heads. taps: of the convolution, the token's own included.
    grouped: projections are stored by key head, as in Qwen3-Next.
    """

    layers: tuple[bool, ...]
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    grouped: bool

    @property
    def channels(self) -> int:
        """Inputs of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def share(self, ranks: int) -> DeltaNetConfig:
        """One rank's part: as many of the key heads, each with its value heads."""
        return replace(self, key_heads=self.key_heads // ranks, heads=self.heads // ranks)

    def layout(self, layers: int) -> StateLayout:
        """The layout of the states of the first `layers` layers."""
        shape = self.heads, self.key_dim, self.value_dim
        return StateLayout(sum(self.layers[:layers]), self.channels, self.taps - 1, *shape)


def read_delta_nets(architecture: str, fields: ConfigReader) -> DeltaNetConfig | None:
    """The fields of gated delta nets; None for other architectures. ConfigError on inconsistent ones."""
    if architecture not in HYBRID_ARCHITECTURES:
        return None
    for name, value in ONLY:
        if fields.raw.get(name) not in (None, value):
            raise ConfigError(f"{fields.file}: {name} {shown(fields.raw[name])} is not supported; allowed: {value!r}")
    key_heads, heads = fields.size("linear_num_key_heads", 16), fields.size("linear_num_value_heads", 32)
    if heads % key_heads:
        raise ConfigError(
            f"{fields.file}: linear_num_value_heads {heads} must be a multiple of linear_num_key_heads {key_heads}"
        )
    return DeltaNetConfig(
        _layers(fields),
        key_heads,
        heads,
        fields.size("linear_key_head_dim", 128),
        fields.size("linear_value_head_dim", 128),
        fields.size("linear_conv_kernel_dim", 4, MAX_TAPS, 2),
        architecture == "Qwen3NextForCausalLM",
    )


def _layers(fields: ConfigReader) -> tuple[bool, ...]:
    layers, interval = fields.size("num_hidden_layers", most=MAX_LAYERS), fields.size("full_attention_interval", 4)
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        kinds = [KINDS[(i + 1) % interval > 0] for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"{fields.file}: layer_types must be a list of {layers} names, one for each layer")
    if unknown := sorted(set(map(str, kinds)) - set(KINDS)):
        raise ConfigError(
            f"{fields.file}: layer_types {shown(unknown[0])} is not supported; allowed: {' and '.join(KINDS)}"
        )
    if len(set(kinds)) < 2:
        raise ConfigError(f"{fields.file}: layer_types must contain both {' and '.join(KINDS)}")
    return tuple(kind == KINDS[1] for kind in kinds)


def read_rotated(architecture: str, fields: ConfigReader, head_dim: int) -> int | None:
    """How many of a head's dimensions are rotated, None for all. ConfigError if they are no pairs."""
    if architecture not in HYBRID_ARCHITECTURES:
        return None
    default = fields.number("partial_rotary_factor", 0.25)
    part = fields.group("rope_parameters").number("partial_rotary_factor", default)
    rotated = int(head_dim * part)
    if part > 1 or rotated < 2 or rotated % 2:
        raise ConfigError(
            f"{fields.file}: partial_rotary_factor {part:g} of head_dim {head_dim} must rotate an even number of at "
            f"most {head_dim} dimensions"
        )
    return rotated


def read_experts(architecture: str, fields: ConfigReader) -> MoEConfig | None:
    """The mixture of experts, with softmax scores and a gated shared expert; None for dense architectures."""
    if architecture not in SPARSE:
        return None
    routed = fields.size("num_experts", 512)
    return MoEConfig(
        routed=routed,
        chosen=fields.size("num_experts_per_tok", 10, routed),
        inner=fields.size("moe_intermediate_size", 512),
        shared=fields.size("shared_expert_intermediate_size", 512),
        groups=1,
        open_groups=1,
        # Qwen3.5's router has no such field and always normalises.
        normed=architecture != "Qwen3NextForCausalLM" or fields.flag("norm_topk_prob", True),
        scale=1.0,
        dense=0,
        softmax=True,
    )
