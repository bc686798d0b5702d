"""Prediction layers that are bundled in the target's checkpoint: DeepSeek-V3's (arXiv 2412.19437, section 2.2), and the
MTP head of Qwen3-Next and Qwen3.5, whose layers share the norms and the projection around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig, bundled_field
from specmatrix.engine.models.deepseek.mla import MLALayer, MLAShape, mla_layout
from specmatrix.engine.models.layers import Attend, Norm
from specmatrix.engine.models.qwen3_next.model import HybridLayer, one_centred
from specmatrix.engine.models.rope import rotations
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError

# The tensors around a layer: norms of embedding and state, the projection of both, and the final norm.
AROUND: Final = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
MTP: Final = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")


class PredictionLayer:
    """One layer: from a state and the next token it computes the state that predicts the token after that.

    States are after a final norm, the target's or the layer's own. index: position of its KV in a pool of several
    layers; kv: the layout of its own pool. around: the tensors AROUND. aux_layers: what the target must capture for it.
    """

    aux_layers = (FINAL,)

    def __init__(
        self,
        config: ModelConfig,
        take: WeightReader,
        prefix: str,
        target: CausalLM,
        turns: Tensor,
        index: int,
        around: Sequence[Tensor],
    ) -> None:
        self.dtype = target.dtype
        self.index, self.rotations = index, turns
        self.carry_width = hidden = config.hidden_size
        self.vocab_size = config.vocab_size
        norm = Norm(hidden, config.norm_eps, target.dtype, target.device, target.deterministic)
        self.norm = norm
        self.word_norm, self.state_norm, join, final = around
        word, state = join.chunk(2, 1)
        self.join = norm.stored(torch.cat((norm.fold(word, self.word_norm), norm.fold(state, self.state_norm)), 1))
        self.decoder: Callable[..., None]
        if config.latent is None:
            self.kv = KVLayout(1, config.num_kv_heads, config.head_dim)
            self.decoder = HybridLayer(take, prefix, config, norm, recurrent=False)
        else:
            self.kv, self.decoder = mla_layout(config, 1), MLALayer(take, prefix, config, norm, sparse=True)
        self.final_norm = norm.scale(final)
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
    """The first `count` prediction layers of a checkpoint; each has its own KV.

    Raises ConfigError if it has fewer.
    """
    if config.bundled_layers < count:
        raise ConfigError(
            f"{config.architecture}: {bundled_field(config.architecture)} is {config.bundled_layers}, fewer than the "
            f"{count} layers to draft with"
        )
    shared = config.delta is not None
    first, stem = (0, "mtp.layers") if shared else (config.num_layers, "model.layers")
    prefixes = [f"{stem}.{first + i}" for i in range(config.bundled_layers)]
    if shared:
        one_centred(weights)
    take = WeightReader(weights, config.architecture)
    turns = rotations(config.rope, config.rotary_dim, target.positions, target.device)
    arounds = [_around(take, "mtp", MTP, config)] * count if shared else []
    arounds = arounds or [_around(take, prefix, AROUND, config) for prefix in prefixes[:count]]
    layers = [
        PredictionLayer(config, take, prefix, target, turns, i, around)
        for i, (prefix, around) in enumerate(zip(prefixes, arounds, strict=False))
    ]
    for prefix in prefixes[count:]:
        take.leave(f"{prefix}.")
    take.done()
    return layers


def _around(take: WeightReader, prefix: str, names: Sequence[str], config: ModelConfig) -> list[Tensor]:
    hidden = config.hidden_size
    shapes = (hidden,), (hidden,), (hidden, 2 * hidden), (hidden,)
    return [take(f"{prefix}.{name}.weight", *shape) for name, shape in zip(names, shapes, strict=True)]
