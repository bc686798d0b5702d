"""The content of a checkpoint's config.json, checked once and frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.models import draft_config
from specmatrix.engine.models.config_reader import MAX_LAYERS, ConfigReader, read_json
from specmatrix.engine.models.deepseek.config import MLAConfig, MoEConfig, read_mla, read_moe
from specmatrix.engine.models.draft_config import TOWERS, DraftConfig, flat_config, read_draft, read_mask_token
from specmatrix.engine.models.qwen3_next.config import (
    HYBRID_ARCHITECTURES,
    DeltaNetConfig,
    read_delta_nets,
    read_experts,
    read_rotated,
)
from specmatrix.engine.models.rope import RopeConfig, check_frequencies
from specmatrix.errors import ConfigError, shown

TARGET_ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "DeepseekV3ForCausalLM",
    *HYBRID_ARCHITECTURES,
)
CONFIG: Final = "config.json"
# Architectures that normalise each query and key head before rotation.
HEAD_NORM_ARCHITECTURES: Final = ("Qwen3ForCausalLM", *draft_config.BLOCK_ARCHITECTURES, *HYBRID_ARCHITECTURES)
# Fields that change a layer's arithmetic; this engine supports none of them.
UNSUPPORTED_SWITCHES: Final = ("attention_bias", "mlp_bias", "quantization_config")
# Accepted values of `dtype`; the dtype of each tensor is read from its file.
DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
MAX_DIM: Final = 2**16


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model.

    context_length: positions that the checkpoint was trained for, in tokens.
    head_norms: each query and key head has its own norm before rotation.
    windows: each layer's sliding window in tokens, the query's own included, None without one; empty if no layer has
    one. latent, experts: latent attention and mixture of experts; head_dim is then the rotated part of a key.
    bundled_layers: prediction layers in the checkpoint beside the model's own layers.
    draft: the additional fields of a draft that reads hidden states; None for a language model. mask_token: the id in
    place of tokens that a draft does not know yet; None if it predicts one token per forward.
    delta: the recurrent layers; None without any. rotated: how many of a head's dimensions are rotated, None for all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    tie_embeddings: bool
    rope: RopeConfig
    head_norms: bool = False
    windows: tuple[int | None, ...] = ()
    latent: MLAConfig | None = None
    experts: MoEConfig | None = None
    bundled_layers: int = 0
    draft: DraftConfig | None = None
    mask_token: int | None = None
    delta: DeltaNetConfig | None = None
    rotated: int | None = None

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of a head."""
        return self.head_dim if self.rotated is None else self.rotated

    @property
    def bundled_prefixes(self) -> tuple[str, ...]:
        """The prefixes of the prediction layers' tensor names."""
        if self.delta is not None:
            return ("mtp.",)
        return tuple(f"model.layers.{self.num_layers + i}." for i in range(self.bundled_layers))

    def kept_numbers(self, ranks: int = 1) -> int:
        """Numbers that one layer stores per token on each rank: keys and values, or the latent and its rotated key."""
        if self.latent is not None:
            return self.latent.rank + self.latent.rotated_dim
        return 2 * max(1, self.num_kv_heads // ranks) * self.head_dim


def load_model_config(path: str | Path) -> ModelConfig:
    """The checked config.json of the checkpoint folder `path`. ConfigError if it is missing, broken or unsupported."""
    return read_model_config(read_raw(path), Path(path) / CONFIG)


def read_model_config(raw: Mapping[str, Any], file: Path) -> ModelConfig:
    """The model configuration in a config.json. Raises ConfigError, naming `file`, if it is unsupported."""
    nested = raw.get("text_config")
    if raw.get("architectures") in ([name] for name in TOWERS) and not isinstance(nested, dict):
        raise ConfigError(f"{file}: text_config must be an object with the text model's fields, got {shown(nested)}")
    return _ModelConfigReader(flat_config(raw), file).read()


def read_raw(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint folder's config.json. ConfigError if it is missing or not a JSON object."""
    if not os.path.isdir(path):  # noqa: PTH112 - raises nothing for a name that is too long
        raise ConfigError(
            f"checkpoint {shown(str(path))} does not exist; pass a folder with config.json and safetensors files"
        )
    return read_json(Path(path) / CONFIG)


def bundled_field(architecture: str) -> str:
    """The field of config.json with the number of prediction layers."""
    return "mtp_num_hidden_layers" if architecture.startswith("Qwen3_5") else "num_nextn_predict_layers"


class _ModelConfigReader(ConfigReader):
    """The fields that all architectures have."""

    def read(self) -> ModelConfig:
        architecture = self._architecture()
        for switch in UNSUPPORTED_SWITCHES:
            if self.raw.get(switch):
                raise ConfigError(
                    f"{self.file}: {switch} = {shown(self.raw[switch])} is not supported; it must be absent"
                )
        if (act := self.raw.get("hidden_act", "silu")) != "silu":
            raise ConfigError(f"{self.file}: hidden_act {shown(act)} is not supported; allowed: 'silu'")
        heads = self.size("num_attention_heads")
        hidden = self.size("hidden_size")
        latent = read_mla(architecture, self)
        usual = 128 if architecture in HEAD_NORM_ARCHITECTURES else hidden // heads
        head_dim = self.size("head_dim", usual) if latent is None else latent.rotated_dim
        # Latent attention has one key row for all heads, whatever this field is.
        kv_heads = heads if latent is not None else self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigError(
                f"{self.file}: num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"
            )
        if head_dim % 2:
            raise ConfigError(f"{self.file}: head_dim {head_dim} must be even, because rotary embeddings rotate pairs")
        if head_dim > MAX_DIM:
            raise ConfigError(f"{self.file}: head_dim must be at most {MAX_DIM}, got {head_dim}")
        rope = RopeConfig.read(self, architecture in HYBRID_ARCHITECTURES)
        rotated = read_rotated(architecture, self, head_dim)
        check_frequencies(rope, rotated or head_dim, str(self.file))
        experts = read_moe(architecture, self) or read_experts(architecture, self)
        delta = read_delta_nets(architecture, self)
        self._check_unused()
        return ModelConfig(
            architecture=architecture,
            vocab_size=self.size("vocab_size"),
            hidden_size=hidden,
            # Qwen3.5 with experts has no dense part and no such field.
            intermediate_size=self.size("intermediate_size", experts.inner if experts and experts.softmax else None),
            num_layers=self.size("num_hidden_layers", most=MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=self.number("rms_norm_eps", 1e-6),
            context_length=self.size("max_position_embeddings", 2048),
            tie_embeddings=self.flag("tie_word_embeddings", False),
            rope=rope,
            rotated=rotated,
            head_norms=architecture in HEAD_NORM_ARCHITECTURES,
            windows=read_windows(architecture, self),
            latent=latent,
            experts=experts,
            bundled_layers=self.count(bundled_field(architecture), int(delta is not None), MAX_LAYERS)
            if latent or delta
            else 0,
            mask_token=read_mask_token(architecture, self),
            draft=read_draft(architecture, self),
            delta=delta,
        )

    def _check_unused(self) -> None:
        """ConfigError on values that this engine does not use and that no checkpoint may have."""
        for name in ("dtype", "torch_dtype"):
            self.value(name, lambda kind: kind in DTYPES, f"one of {', '.join(DTYPES)}", DTYPES[0])
        self.size("sliding_window", 1)
        self.flag("use_sliding_window", False)

    def _architecture(self) -> str:
        allowed = TARGET_ARCHITECTURES + draft_config.DRAFT_ARCHITECTURES
        names = self.raw.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in allowed:
            raise ConfigError(
                f"{self.file}: architectures {shown(names)} is not supported; allowed: {', '.join(allowed)}"
            )
        return str(names[0])


FULL, SLIDING = "full_attention", "sliding_attention"
# transformers' default for a Mistral without this field; null means no window.
MISTRAL_WINDOW: Final = 4096


def read_windows(architecture: str, fields: ConfigReader) -> tuple[int | None, ...]:
    """Each layer's sliding window in tokens, the query's own included; None without one. Empty: no layer has a window.

    As in transformers: all of Mistral's layers have `sliding_window`; in Qwen3 those listed in `layer_types` do, or
    else the layers from `max_window_layers` up, both only with `use_sliding_window`. Raises ConfigError on a list that
    does not fit.
    """
    if architecture == "MistralForCausalLM":
        return _mistral(fields)
    if architecture == "Qwen3ForCausalLM":
        return _qwen3(fields)
    return ()


def _mistral(fields: ConfigReader) -> tuple[int | None, ...]:
    if fields.raw.get("sliding_window", MISTRAL_WINDOW) is None:
        return ()
    return (fields.size("sliding_window", MISTRAL_WINDOW),) * fields.size("num_hidden_layers", most=MAX_LAYERS)


def _qwen3(fields: ConfigReader) -> tuple[int | None, ...]:
    layers = fields.size("num_hidden_layers", most=MAX_LAYERS)
    used = fields.flag("use_sliding_window", False)
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers", 28)
        kinds = [SLIDING if used and i >= first else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"{fields.file}: layer_types must be a list of {layers} names, one for each layer")
    if unknown := sorted(set(map(str, kinds)) - {FULL, SLIDING}):
        raise ConfigError(
            f"{fields.file}: layer_types {shown(unknown[0])} is not supported; allowed: {FULL!r} and {SLIDING!r}"
        )
    if SLIDING not in kinds:
        return ()
    if not used:
        raise ConfigError(f"{fields.file}: layer_types contains {SLIDING!r}, which needs use_sliding_window true")
    size = fields.size("sliding_window", 4096)
    return tuple(size if kind == SLIDING else None for kind in kinds)
