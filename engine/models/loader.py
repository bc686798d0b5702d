"""Loads a model from a checkpoint folder, and the facts that configuration needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import torch

from specmatrix.engine.core.config.asked import AUTO, DraftFacts, Facts
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.config import TARGET_ARCHITECTURES, ModelConfig, load_model_config
from specmatrix.engine.models.deepseek.model import Deepseek
from specmatrix.engine.models.dflash.model import DFlash, DFlash2, DSpark
from specmatrix.engine.models.draft_config import BLOCK_ARCHITECTURES, EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES
from specmatrix.engine.models.eagle.formats import load_draft_config
from specmatrix.engine.models.eagle.model import Eagle, Eagle3
from specmatrix.engine.models.llama.model import Llama
from specmatrix.engine.models.nextn.model import PredictionLayer, prediction_layers
from specmatrix.engine.models.qwen3_next.config import HYBRID_ARCHITECTURES
from specmatrix.engine.models.qwen3_next.model import Hybrid
from specmatrix.engine.models.standalone.model import Standalone
from specmatrix.engine.models.tokenizer import tokenizer_hash
from specmatrix.engine.models.weights import load_weights
from specmatrix.errors import ConfigError

# Replaces the target's embedding of a DFLASH draft's mask token in vLLM.
MASK_EMBEDDING: Final = "mask_embedding.pt"
TARGETS: Final[dict[str, type[CausalLM]]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen3ForCausalLM": Llama,
    "DeepseekV3ForCausalLM": Deepseek,
    **dict.fromkeys(HYBRID_ARCHITECTURES, Hybrid),
}


def facts(model_path: str | Path, draft_path: str | Path | None, device: str) -> Facts:
    """Facts about the two checkpoints and the machine; reads no weights. Raises ConfigError on a bad folder.

    device: "cpu" or a CUDA device as requested, or "auto" for a GPU if one is visible.
    """
    target = _expect(model_path, TARGET_ARCHITECTURES, "a target model")
    draft = None if draft_path is None else load_draft_config(draft_path)
    gpus = torch.cuda.device_count()
    kind = ("cuda" if gpus else "cpu") if device == AUTO else torch.device(device).type
    return facts_of(
        target,
        draft,
        "cuda" if kind == "cuda" else "cpu",
        gpus,
        tokenizer_hash(model_path),
        None if draft_path is None else tokenizer_hash(draft_path),
    )


def facts_of(
    target: ModelConfig,
    draft: ModelConfig | None,
    kind: Literal["cpu", "cuda"],
    gpus: int,
    tokenizer: str | None = None,
    draft_tokenizer: str | None = None,
) -> Facts:
    """Facts from two configurations, for a device of type `kind`. tokenizer: the target's hash, None if unknown."""
    experts = () if target.experts is None else (target.experts.inner, target.experts.shared)
    return Facts(
        architecture=target.architecture,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_layers=target.num_layers,
        context_length=target.context_length,
        tokenizer_hash=tokenizer,
        draft=None if draft is None else _draft_facts(draft, target, draft_tokenizer),
        device_kind=kind,
        gpus=gpus,
        window=next((size for size in target.windows if size is not None), None),
        bundled=_bundled_facts(target, tokenizer) if target.bundled_layers else None,
        heads=target.num_heads,
        state_heads=0 if target.delta is None else target.delta.key_heads,
        kv_heads=target.num_kv_heads if target.latent is None else 1,
        widths=tuple(dict.fromkeys((target.intermediate_size, *experts))),
    )


def _bundled_facts(target: ModelConfig, tokenizer: str | None) -> DraftFacts:
    """Facts about the prediction layers in a target's checkpoint, which read its final states and share its head."""
    return DraftFacts(
        architecture=f"{target.architecture}NextN",
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        tokenizer_hash=tokenizer,
        aux_layers=(FINAL,),
        prediction_layers=target.bundled_layers,
    )


def _draft_facts(config: ModelConfig, target: ModelConfig, tokenizer: str | None) -> DraftFacts:
    if config.bundled_layers:
        return replace(_bundled_facts(config, tokenizer), architecture=config.architecture)
    head = config.draft
    return DraftFacts(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        target_hidden_size=None if head is None else head.target_hidden_size,
        draft_vocab_size=None if head is None else head.vocab_size,
        tokenizer_hash=tokenizer,
        aux_layers=() if head is None else head.states_of(target.num_layers),
        block_size=None if head is None else head.block_size,
        confidence_head=head is not None and head.markov is not None and head.markov.confident,
        mask_token=config.mask_token,
    )


def load_target(
    path: str | Path,
    device: str,
    dtype: torch.dtype,
    deterministic: bool = True,
    ranks: Ranks = ALONE,
    positions: int | None = None,
) -> CausalLM:
    """The target model, or a rank's part of it. positions: how many to prepare, by default the checkpoint's context.

    ConfigError on a checkpoint that is missing, damaged or of another architecture.
    """
    config = _expect(path, TARGET_ARCHITECTURES, "a target model")
    place = torch.device(device)
    return _language_model(path, config, place, dtype, deterministic, positions, ranks)


# A draft is on its target's device, in its dtype, and as deterministic. That it reads states which the target has, and
# knows the same tokens, is for the rules (`core.config.rules.draft`).


def load_standalone(path: str | Path, target: CausalLM) -> Standalone:
    """A language model as a draft, with as many positions as the target. ConfigError as for a target."""
    config = _expect(path, TARGET_ARCHITECTURES, "a STANDALONE draft")
    if config.windows or config.delta is not None:
        kind = "a sliding window" if config.windows else "a recurrent state"
        raise ConfigError(f"{path} has layers with {kind}; a STANDALONE draft must have full attention in all layers")
    same = target.device, target.dtype, target.deterministic, target.positions
    return Standalone(_language_model(path, config, *same), config.mask_token)


def load_eagle(path: str | Path, target: CausalLM) -> Eagle:
    """An EAGLE head. ConfigError as for a target, or if it is for another number of layers."""
    config = _expect(path, EAGLE_ARCHITECTURES, "an EAGLE draft", load_draft_config)
    return Eagle(config, load_weights(path, target.device, target.dtype), target)


def load_eagle3(path: str | Path, target: CausalLM) -> Eagle3:
    """An EAGLE-3 head. ConfigError as for a target, or if it does not fit the target's layers or vocabulary."""
    config = _expect(path, EAGLE3_ARCHITECTURES, "an EAGLE3 draft", load_draft_config)
    return Eagle3(config, load_weights(path, target.device, target.dtype), target)


def load_nextn(path: str | Path, target: CausalLM, count: int) -> Sequence[PredictionLayer]:
    """The first `count` prediction layers of a target's checkpoint: this target's, or another one of its shape.

    Reads nothing else of the checkpoint. ConfigError as for a target, or if there are fewer layers.
    """
    config = _expect(path, TARGET_ARCHITECTURES, "a checkpoint with prediction layers")
    weights = load_weights(path, target.device, target.dtype, config.bundled_prefixes)
    return prediction_layers(config, weights, target, count)


def load_dflash(path: str | Path, target: CausalLM) -> DFlash:
    """A DFLASH, DFLASH2 or DSPARK draft. ConfigError as for a target, or if it is for another number of layers."""
    config = _expect(path, BLOCK_ARCHITECTURES, "a DFLASH draft")
    if (Path(path) / MASK_EMBEDDING).exists():
        raise ConfigError(f"{path} has {MASK_EMBEDDING}, an embedding of the mask token that is not supported")
    parts = config.draft
    kind = DFlash if parts is None or (parts.dflash2 or parts.markov) is None else DSpark if parts.markov else DFlash2
    return kind(config, load_weights(path, target.device, target.dtype), target)


def _language_model(
    path: str | Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool,
    positions: int | None,
    ranks: Ranks = ALONE,
) -> CausalLM:
    kind = TARGETS[config.architecture]
    # With several ranks, loaded on the CPU: a GPU may only have room for its rank's part.
    weights = load_weights(path, device if ranks.size == 1 else "cpu", dtype)
    return kind(config, weights, device, dtype, deterministic, positions, ranks)


def _expect(
    path: str | Path,
    architectures: tuple[str, ...],
    role: str,
    read: Callable[[str | Path], ModelConfig] = load_model_config,
) -> ModelConfig:
    config = read(path)
    if config.architecture not in architectures:
        raise ConfigError(f"{path} is a {config.architecture}, but {role} must be {' or '.join(architectures)}")
    return config
