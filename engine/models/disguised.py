"""EAGLE drafts whose config.json names the architecture of their target, as EAGLE's authors publish them.

Their tensors tell: no language model has an `fc`, and no EAGLE-1 or 2 draft norms hidden states on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.models.config import CONFIG, ModelConfig, read_model_config, read_raw
from engine.models.draft_config import EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES
from engine.models.weights import has_weights, tensor_names

DISGUISE: Final = "LlamaForCausalLM"
FUSE: Final = "fc.weight"
NORMED_STATES: Final = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")


def load_draft_config(path: str | Path) -> ModelConfig:
    """The checked config.json of a draft's folder, an EAGLE draft under its own name. ConfigError as for a target.

    Reads the names of tensors, where config.json says that the draft is a Llama.
    """
    return read_model_config(_unmasked(read_raw(path), Path(path)), Path(path) / CONFIG)


def _unmasked(raw: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    if raw.get("architectures") != [DISGUISE] or not has_weights(folder):
        return raw
    names = {name.removeprefix("model.") for name in tensor_names(folder)}
    if FUSE not in names:
        return raw
    third = not names.isdisjoint(NORMED_STATES)
    return {**raw, "architectures": [*(EAGLE3_ARCHITECTURES if third else EAGLE_ARCHITECTURES)]}
