"""A decoder layer with multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in its absorbed form.

A token's KV is one row: the normalised latent, then the rotated key that all heads share. A query is projected into
latent space, where scores and weighted sums are computed over these rows; a head's sum is then projected to its value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.deepseek.moe import GatedMLP, MoE
from specmatrix.engine.models.layers import Attend, Norm
from specmatrix.engine.models.rope import pair_up, rotated
from specmatrix.engine.models.weights import WeightReader

# The norms of both latents use this epsilon, whatever the checkpoint's is.
LATENT_EPS: Final = 1e-6


class MLAShape(NamedTuple):
    """B requests of W tokens."""

    batch: int
    width: int


def mla_layout(config: ModelConfig, layers: int) -> KVLayout:
    """The contents of a slot for `layers` such layers. The score scale uses a full query's width, and YaRN's factor."""
    c = config.latent
    assert c is not None
    scale = (c.plain_dim + c.rotated_dim) ** -0.5 * config.rope.score_factor
    return KVLayout(layers, 1, c.rank + c.rotated_dim, value_dim=c.rank, scale=scale)


class MLALayer:
    """One DeepSeek-V3 decoder layer, as also used by bundled prediction layers.

    prefix: of its tensor names. sparse: with a mixture of experts instead of a dense feed-forward part.
    """

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, sparse: bool) -> None:
        assert config.latent is not None
        self.config, self.heads = config.latent, config.num_heads
        c, hidden, at = config.latent, config.hidden_size, f"{prefix}.self_attn"
        dtype, device = norm.dtype, norm.device
        self.norm = norm
        self.linear, self.add_linear, self.each_linear, _ = norm.products
        self.input_norm = take(f"{prefix}.input_layernorm.weight", hidden)
        self.post_norm = take(f"{prefix}.post_attention_layernorm.weight", hidden)
        shared = take(f"{at}.kv_a_proj_with_mqa.weight", c.rank + c.rotated_dim, hidden)
        latent, key = shared[: c.rank], shared[c.rank :]
        self.latent_norm = Norm(c.rank, LATENT_EPS, dtype, device)
        self.latent_scale = self.latent_norm.scale(take(f"{at}.kv_a_layernorm.weight", c.rank))
        query = self._queries(take, at, hidden, norm)
        self.down = norm.stored(norm.fold(torch.cat((self._paired(key), query, latent)), self.input_norm))
        made = take(f"{at}.kv_b_proj.weight", self.heads * (c.plain_dim + c.value_dim), c.rank)
        made = made.view(self.heads, c.plain_dim + c.value_dim, c.rank)
        self.lift = norm.own.hold(made[:, : c.plain_dim].contiguous())
        self.values = norm.own.hold(made[:, c.plain_dim :].transpose(1, 2).contiguous())
        self.out = norm.stored(take(f"{at}.o_proj.weight", hidden, self.heads * c.value_dim))
        if sparse:
            self.feed_forward: MoE | GatedMLP = MoE(take, f"{prefix}.mlp", config, norm, self.post_norm)
        else:
            inner = config.intermediate_size
            self.feed_forward = GatedMLP(take, f"{prefix}.mlp", hidden, inner, norm, self.post_norm)

    def _queries(self, take: WeightReader, at: str, hidden: int, norm: Norm) -> Tensor:
        """The query's part of the first projection [out, hidden]; `up` projects from the query latent, if any."""
        c = self.config
        size = self.heads * (c.plain_dim + c.rotated_dim)
        self.up: Tensor | None = None
        if c.query_rank is None:
            return self._turned_first(take(f"{at}.q_proj.weight", size, hidden))
        self.query_weight = take(f"{at}.q_a_layernorm.weight", c.query_rank)
        self.query_norm = Norm(c.query_rank, LATENT_EPS, norm.dtype, norm.device)
        up = self._turned_first(take(f"{at}.q_b_proj.weight", size, c.query_rank))
        self.up = norm.stored(self.query_norm.fold(up, self.query_weight))
        return take(f"{at}.q_a_proj.weight", c.query_rank, hidden)

    def _turned_first(self, weight: Tensor) -> Tensor:
        """Reorder a query projection's rows from head by head to all rotated numbers, then the unrotated ones."""
        c = self.config
        split = weight.view(self.heads, c.plain_dim + c.rotated_dim, -1)
        plain, turning = split[:, : c.plain_dim].flatten(0, 1), split[:, c.plain_dim :].flatten(0, 1)
        return torch.cat((self._paired(turning), plain))

    def _paired(self, weight: Tensor) -> Tensor:
        return weight if self.config.interleaved else pair_up(weight, self.config.rotated_dim)

    def __call__(self, x: Tensor, rotation: Tensor, attend: Attend, layer: int, workspace: MLAShape) -> None:
        """Add this layer's attention and feed-forward output to the residual stream x [R, hidden], in place."""
        self.attention(x, rotation, attend, layer, workspace)
        self.feed_forward(x, self.norm(x, self.post_norm))

    def attention(self, x: Tensor, rotation: Tensor, attend: Attend, layer: int, workspace: MLAShape) -> None:
        """Add the attention output to x [R, hidden], in place.

        rotation: complex64 [B * W, 1, rotated_dim / 2].
        """
        c, heads, rows = self.config, self.heads, len(x)
        first = self.linear(self.norm(x, self.input_norm), self.down)
        key, query, latent = first.tensor_split((c.rotated_dim, first.shape[1] - c.rank), 1)
        if self.up is not None:
            query = self.linear(self.query_norm(query, self.query_weight), self.up)
        turning, plain = query.tensor_split((heads * c.rotated_dim,), 1)
        lifted = self.each_linear(plain.reshape(rows, heads, c.plain_dim).transpose(0, 1), self.lift)
        whole = torch.cat((lifted.transpose(0, 1), rotated(turning, c.rotated_dim, rotation)), 2)
        row = torch.cat(
            (self.latent_norm.whole(latent, self.latent_scale), rotated(key, c.rotated_dim, rotation)[:, 0]), 1
        )
        mixed = attend(layer, whole.view(*workspace, heads, -1), row)
        values = self.each_linear(mixed.view(rows, heads, c.rank).transpose(0, 1), self.values)
        self.add_linear(x, values.transpose(0, 1).reshape(rows, heads * c.value_dim), self.out)
