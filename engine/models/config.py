"""What a checkpoint's config.json says, checked once and frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.core.errors import ConfigError
from engine.models.rope import RopeConfig

TARGET_ARCHITECTURES: Final = ("LlamaForCausalLM",)
EAGLE3_ARCHITECTURES: Final = ("LlamaForCausalLMEagle3",)
# Switches that change the arithmetic of a Llama; this engine runs none of them.
UNSUPPORTED_SWITCHES: Final = ("attention_bias", "mlp_bias", "quantization_config")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model.

    context_length: positions that the checkpoint was made for, in tokens.
    draft_vocab_size, target_hidden_size, aux_layers: EAGLE-3 drafts only; aux_layers are indices of target layers
    whose *input* is captured, None where the checkpoint leaves them to the rule of `aux_layers_of`.
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
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    aux_layers: tuple[int, ...] | None = None

    @property
    def is_eagle3(self) -> bool:
        return self.architecture in EAGLE3_ARCHITECTURES

    def aux_layers_of(self, target_layers: int) -> tuple[int, ...]:
        """Target layers whose inputs an EAGLE-3 draft reads; by default those of the EAGLE-3 paper's code."""
        if self.aux_layers is None:
            return (2, target_layers // 2, target_layers - 3)
        return self.aux_layers


def load_model_config(path: str | Path) -> ModelConfig:
    """The checked config.json of the checkpoint folder `path`. ConfigError if missing, broken or unsupported."""
    file = Path(path) / "config.json"
    if not Path(path).is_dir():
        raise ConfigError(f"checkpoint {str(path)!r} does not exist; give a folder with config.json and safetensors")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing; a checkpoint folder needs it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid JSON ({error}); the file is truncated or damaged") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must hold a JSON object, got {type(raw).__name__}")
    return _Reader(raw, file).read()


class _Reader:
    """Takes fields out of one config.json and names the file in every complaint."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self.raw = raw
        self.file = file

    def read(self) -> ModelConfig:
        architecture = self._architecture()
        for switch in UNSUPPORTED_SWITCHES:
            if self.raw.get(switch):
                raise ConfigError(f"{self.file}: {switch} = {self.raw[switch]!r} is not supported; it must be absent")
        if (act := self.raw.get("hidden_act", "silu")) != "silu":
            raise ConfigError(f"{self.file}: hidden_act {act!r} is not supported; allowed: 'silu'")
        heads = self.size("num_attention_heads")
        hidden = self.size("hidden_size")
        head_dim = self.size("head_dim", hidden // heads)
        kv_heads = self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigError(
                f"{self.file}: num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"
            )
        if head_dim % 2:
            raise ConfigError(f"{self.file}: head_dim {head_dim} must be even, rotary positions turn pairs")
        config = ModelConfig(
            architecture=architecture,
            vocab_size=self.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self.size("intermediate_size"),
            num_layers=self.size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=self.number("rms_norm_eps", 1e-6),
            context_length=self.size("max_position_embeddings", 2048),
            tie_embeddings=bool(self.raw.get("tie_word_embeddings", False)),
            rope=RopeConfig.read(self.raw, str(self.file)),
            **(self._eagle3(hidden) if architecture in EAGLE3_ARCHITECTURES else {}),
        )
        if config.is_eagle3 and config.num_layers != 1:
            raise ConfigError(f"{self.file}: num_hidden_layers must be 1 for an EAGLE-3 draft, got {config.num_layers}")
        return config

    def _architecture(self) -> str:
        allowed = TARGET_ARCHITECTURES + EAGLE3_ARCHITECTURES
        names = self.raw.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in allowed:
            raise ConfigError(f"{self.file}: architectures {names!r} is not supported; allowed: {', '.join(allowed)}")
        return str(names[0])

    def _eagle3(self, hidden: int) -> dict[str, Any]:
        eagle = self.raw.get("eagle_config") or {}
        if not eagle.get("use_aux_hidden_state", True):
            raise ConfigError(f"{self.file}: use_aux_hidden_state false is not supported; allowed: true")
        ids = eagle.get("eagle_aux_hidden_state_layer_ids")
        if ids is not None and not (isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids)):
            raise ConfigError(f"{self.file}: eagle_aux_hidden_state_layer_ids must be a list of layer ids, got {ids!r}")
        return {
            "draft_vocab_size": self.size("draft_vocab_size", self.size("vocab_size")),
            "target_hidden_size": self.size("target_hidden_size", hidden),
            # An id names the layer whose output is captured, which is the state entering the next one.
            "aux_layers": None if ids is None else tuple(i + 1 for i in ids),
        }

    def size(self, name: str, default: int | None = None) -> int:
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self.file}: {name} must be a positive integer, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name, default)
        if type(value) not in (int, float) or not value > 0:
            raise ConfigError(f"{self.file}: {name} must be a positive number, got {value!r}")
        return float(value)
