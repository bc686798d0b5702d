"""Weights that a draft without its own tables shares with its target."""

from __future__ import annotations

from torch import Tensor

from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.draft_config import AUX_IDS
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError


def shared_embedding(take: WeightReader, config: ModelConfig, target: CausalLM) -> Tensor:
    """[target vocabulary, H]: the draft's own embed_tokens.weight, or the target's if the checkpoint has none.

    Raises ConfigError if neither has the draft's width.
    """
    if "embed_tokens.weight" in take:
        return take("embed_tokens.weight", config.vocab_size, config.hidden_size)
    if target.hidden_size != config.hidden_size:
        raise ConfigError(
            f"{config.architecture}: embed_tokens.weight is missing, and the target's width is "
            f"{target.hidden_size}, not {config.hidden_size}"
        )
    return target.embedding


def shared_head(take: WeightReader, config: ModelConfig, vocab_size: int, target: CausalLM) -> Tensor:
    """[draft vocabulary, H]: the draft's own lm_head.weight, or the target's if the checkpoint has none.

    Raises ConfigError if neither has the draft's vocabulary and width.
    """
    if "lm_head.weight" in take:
        return take("lm_head.weight", vocab_size, config.hidden_size)
    head = target.head.t()
    if head.shape != (vocab_size, config.hidden_size):
        raise ConfigError(
            f"{config.architecture}: lm_head.weight is missing, and the target's has shape "
            f"{tuple(head.shape)}, not {(vocab_size, config.hidden_size)}"
        )
    return head


def captured_states(config: ModelConfig, target: CausalLM) -> tuple[int, ...]:
    """The target's states that the draft reads. ConfigError if its config is for another number of layers."""
    assert config.draft is not None
    if config.draft.target_layers not in (None, target.num_layers):
        raise ConfigError(
            f"{config.architecture}: num_target_layers {config.draft.target_layers} differs from the target's "
            f"{target.num_layers}"
        )
    states = config.draft.states_of(target.num_layers)
    if config.draft.states is None and config.draft.block_size is None and list(states) != sorted({*states}):
        raise ConfigError(
            f"{config.architecture}: the config names no aux layers, and their default, {list(states)} for a target of "
            f"{target.num_layers} layers, is not three layers one behind the other; set {AUX_IDS}"
        )
    return states
