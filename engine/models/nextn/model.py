"""DeepSeek-V3's prediction layers (arXiv 2412.19437, section 2.2), which are bundled in the target's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.deepseek.mla import MLALayer, MLAShape, mla_layout
from specmatrix.engine.models.layers import Attend, Norm
from specmatrix.engine.models.rope import rotations
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError


class PredictionLayer:
    """One layer: from a state and the next token it computes the state that predicts the token after that.

    States are after a final norm, the target's or the layer's own. index: position of its KV in a pool of several
    layers; kv: the layout of its own pool. aux_layers: what the target must capture for it.
    """

    aux_layers = (FINAL,)

    def __init__(
        self, config: ModelConfig, take: WeightReader, prefix: str, target: CausalLM, turns: Tensor, index: int
    ) -> None:
        self.dtype = target.dtype
        self.index, self.rotations = index, turns
        self.kv = mla_layout(config, 1)
        self.carry_width = hidden = config.hidden_size
        self.vocab_size = config.vocab_size
        norm = Norm(hidden, config.norm_eps, target.dtype, target.device, target.deterministic)
        self.norm = norm
        self.word_norm, self.state_norm = (take(f"{prefix}.{name}.weight", hidden) for name in ("enorm", "hnorm"))
        word, state = take(f"{prefix}.eh_proj.weight", hidden, 2 * hidden).chunk(2, 1)
        self.join = norm.stored(torch.cat((norm.fold(word, self.word_norm), norm.fold(state, self.state_norm)), 1))
        self.decoder = MLALayer(take, prefix, config, norm, sparse=True)
        self.final_norm = norm.scale(take(f"{prefix}.shared_head.norm.weight", hidden))
        own = f"{prefix}.embed_tokens.weight"
        self.embedding = take(own, config.vocab_size, hidden) if own in take else target.embedding
        own = f"{prefix}.shared_head.head.weight"
        self.head = norm.stored(take(own, config.vocab_size, hidden)) if own in take else norm.own.hold(target.head)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor, attend: Attend) -> Tensor:
        """tokens and positions int64 [B, W], hidden [B, W, H] -> states [B, W, H]."""
        batch, width = tokens.shape
        rows = batch * width
        word = self.embedding.index_select(0, tokens.reshape(rows))
        state = hidden.reshape(rows, self.carry_width)
        pair = torch.cat((self.norm(word, self.word_norm), self.norm(state, self.state_norm)), 1)
        x = self.norm.products.linear(pair, self.join)
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        self.decoder(x, rotation, attend, self.index, MLAShape(batch, width))
        return self.norm.whole(x, self.final_norm).view(batch, width, self.carry_width)

    def logits(self, out: Tensor) -> Tensor:
        """out [..., H] as `forward` returned it -> float32 [..., V]."""
        return head_logits(out, self.head, self.norm.own)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as target ids: the vocabulary is the target's."""
        return ids


def prediction_layers(
    config: ModelConfig, weights: dict[str, Tensor], target: CausalLM, count: int
) -> Sequence[PredictionLayer]:
    """The first `count` prediction layers of a checkpoint; they follow its last layer, and each has its own KV.

    Raises ConfigError if it has fewer, or if they do not fit the target.
    """
    if config.bundled_layers < count:
        raise ConfigError(
            f"{config.architecture}: num_nextn_predict_layers is {config.bundled_layers}, fewer than the {count} "
            "layers to draft with"
        )
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise ConfigError(
            f"{config.architecture}: prediction layers with width {config.hidden_size} and {config.vocab_size} tokens "
            f"do not fit a target with width {target.hidden_size} and {target.vocab_size} tokens"
        )
    prefixes = [f"model.layers.{config.num_layers + i}" for i in range(config.bundled_layers)]
    take = WeightReader(weights, config.architecture)
    turns = rotations(config.rope, config.head_dim, target.positions, target.device)
    layers = [PredictionLayer(config, take, prefix, target, turns, i) for i, prefix in enumerate(prefixes[:count])]
    for prefix in prefixes[count:]:
        take.leave(f"{prefix}.")
    take.done()
    return layers
