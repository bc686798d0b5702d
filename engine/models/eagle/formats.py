"""EAGLE drafts whose config.json does not use SGLang's format.

EAGLE's authors put the target's architecture there, AngelSlim its own name. The tensors identify EAGLE's: no
language model has an `fc`, and no EAGLE-1 or 2 draft has a separate norm for hidden states. vLLM's speculators nest the
layer's sizes one level deeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.models.config import CONFIG, ModelConfig, read_model_config, read_raw
from specmatrix.engine.models.config_reader import ConfigReader
from specmatrix.engine.models.draft_config import EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES, MASK_TOKENS
from specmatrix.engine.models.weights import has_weights, tensor_names
from specmatrix.errors import ConfigError, shown

TARGET_NAME: Final = "LlamaForCausalLM"
FUSE: Final = "fc.weight"
NORMED_STATES: Final = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")
SPECULATORS: Final = "speculators_model_type"
LAYER: Final = "transformer_layer_config"
# Its suffix is that of a language model, so the name is replaced before any rule sees it.
ANGELSLIM: Final = "Eagle3LlamaForCausalLM"


def load_draft_config(path: str | Path) -> ModelConfig:
    """The checked config.json of a draft's folder, with an EAGLE architecture name for EAGLE drafts. ConfigError as for
    a target.

    Reads tensor names if config.json says that the draft is a Llama.
    """
    raw: Mapping[str, Any] = read_raw(path)
    if SPECULATORS in raw:
        raw = _flat(raw, Path(path) / CONFIG)
    return read_model_config(_unmasked(raw, Path(path)), Path(path) / CONFIG)


def _flat(raw: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Move the layer's sizes in a speculator's config.json to the top level."""
    fields, kind = ConfigReader(raw, file), raw[SPECULATORS]
    if kind not in ("eagle3", "peagle"):
        raise ConfigError(f"{file}: {SPECULATORS} {shown(kind)} is not supported; allowed: 'eagle3' and 'peagle'")
    if kind == "peagle":
        raw = {"parallel_drafting": True, MASK_TOKENS[0]: raw.get("mask_token_id"), **raw}
    layer = fields.value(LAYER, lambda layer: isinstance(layer, dict), "an object")
    own = {key: value for key, value in raw.items() if key not in (SPECULATORS, LAYER)}
    return {**layer, **own, "architectures": [*EAGLE3_ARCHITECTURES]}


def _unmasked(raw: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Replace another format's architecture name by SGLang's name for the same tensors."""
    if raw.get("architectures") == [ANGELSLIM]:
        return {**raw, "architectures": [*EAGLE3_ARCHITECTURES]}
    if raw.get("architectures") != [TARGET_NAME] or not has_weights(folder):
        return raw
    names = {name.removeprefix("model.") for name in tensor_names(folder)}
    if FUSE not in names:
        return raw
    third = not names.isdisjoint(NORMED_STATES)
    return {**raw, "architectures": [*(EAGLE3_ARCHITECTURES if third else EAGLE_ARCHITECTURES)]}
