"""Reads which of a checkpoint's layers have a sliding window."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.models.config_reader import MOST_LAYERS, ConfigReader
from specmatrix.errors import ConfigError, shown

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
    return (fields.size("sliding_window", MISTRAL_WINDOW),) * fields.size("num_hidden_layers", most=MOST_LAYERS)


def _qwen3(fields: ConfigReader) -> tuple[int | None, ...]:
    layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
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
