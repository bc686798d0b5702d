"""Qwen3-Next and Qwen3.5, dense and with experts: most layers are gated delta nets, the others gated attention.

Norms are zero-centred: a checkpoint holds weight - 1, in all of them but the one behind the delta rule.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.deepseek.mla import MLAShape
from specmatrix.engine.models.deepseek.moe import GatedMLP, MoE
from specmatrix.engine.models.layers import Attend, HeadNorm, Norm
from specmatrix.engine.models.rope import pair_up, rotated
from specmatrix.engine.models.weights import WeightReader
from specmatrix.kernels import gated_delta


class HybridAttend(Attend, Protocol):
    """What a step gives to the layers of a hybrid: also access to its recurrent states, `gated_delta` with this layer's
    slots. u [B, W, C], b and a [B, W, Hv], then conv, a_log and dt_bias -> float32 [B, W, Hv, Dv]."""

    def recur(self, layer: int, u: Tensor, b: Tensor, a: Tensor, *weights: Tensor) -> Tensor: ...


class Hybrid(CausalLM):
    """A Qwen3NextForCausalLM, Qwen3_5ForCausalLM or Qwen3_5MoeForCausalLM; its MTP head is left for a draft."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], *rest: Any, **more: Any) -> None:  # noqa: ANN401
        one_centred(weights)
        super().__init__(config, weights, *rest, **more)

    def prepare(self) -> None:
        assert self.share.delta is not None
        self.kv = KVLayout(self.num_layers, self.share.num_kv_heads, self.config.head_dim)
        self.state = self.share.delta.layout(self.num_layers)

    def layer(self, take: WeightReader, prefix: str, index: int) -> HybridLayer:
        assert self.config.delta is not None
        return HybridLayer(take, prefix, self.share, self.norm, self.config.delta.layers[index])

    def workspace(self, batch: int, width: int) -> MLAShape:
        return MLAShape(batch, width)


def one_centred(weights: dict[str, Tensor]) -> None:
    """Replace the weights of zero-centred norms by 1 + w, in float32, and leave out a vision tower. Where a tensor has
    all experts of a layer, each gets its own."""
    for name in list(weights):
        weight, (*_, owner, kind) = weights.pop(name), ("", *name.split("."))
        if owner == "experts" and weight.ndim == 3:
            kinds, at = kind.removesuffix("_proj").split("_"), name.removesuffix(kind)
            for i, rows in enumerate(weight):
                parts = zip(kinds, rows.chunk(len(kinds)), strict=False)
                weights |= {f"{at}{i}.{one}_proj.weight": part for one, part in parts}
        elif not name.startswith("model.visual."):
            weights[name] = 1 + weight.float() if "norm" in owner and "linear_attn" not in name else weight


class HybridLayer:
    """One decoder layer: a gated delta net or gated attention, then a dense feed-forward part or experts."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, recurrent: bool) -> None:
        self.norm = norm
        self.input_norm = take(f"{prefix}.input_layernorm.weight", config.hidden_size)
        self.post_norm = take(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)
        kind = DeltaNet if recurrent else GatedAttention
        self.mixer = kind(take, prefix, config, norm, self.input_norm)
        if config.experts is not None:
            self.feed_forward: MoE | GatedMLP = MoE(take, f"{prefix}.mlp", config, norm, self.post_norm)
        else:
            sizes = config.hidden_size, config.intermediate_size
            self.feed_forward = GatedMLP(take, f"{prefix}.mlp", *sizes, norm, self.post_norm)

    def __call__(self, x: Tensor, rotation: Tensor, attend: HybridAttend, layer: int, workspace: MLAShape) -> None:
        """Add this layer's outputs to the residual stream x [R, hidden], in place."""
        self.mixer(x, self.norm(x, self.input_norm), rotation, attend, layer, workspace)
        self.feed_forward(x, self.norm(x, self.post_norm))


class GatedAttention:
    """Attention whose output is gated; only the first dimensions of each head are rotated."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, front: Tensor) -> None:
        at, hidden, d = f"{prefix}.self_attn", config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.d, self.turning = config.num_heads, config.num_kv_heads, d, config.rotary_dim
        self.linear, self.add_linear = norm.products.linear, norm.products.add
        self.sigmoid = norm.sigmoid
        both = take(f"{at}.q_proj.weight", self.heads * 2 * d, hidden).view(self.heads, 2, d, hidden)
        q, gate = (part.reshape(-1, hidden) for part in both.unbind(1))
        k, v = (take(f"{at}.{name}_proj.weight", self.kv_heads * d, hidden) for name in "kv")
        rows = torch.cat((pair_up(q, d, self.turning), pair_up(k, d, self.turning), v, gate))
        self.front = norm.stored(norm.fold(rows, front))
        self.out = norm.stored(take(f"{at}.o_proj.weight", hidden, self.heads * d))
        self.head_norm = HeadNorm(take, at, config, norm.dtype)

    def __call__(
        self, x: Tensor, h: Tensor, rotation: Tensor, attend: HybridAttend, layer: int, workspace: MLAShape
    ) -> None:
        """Add to x [R, hidden], in place; h [R, hidden] is the input of projections after the norm."""
        d, queries, turned = self.d, self.heads * self.d, self.heads + self.kv_heads
        first = self.linear(h, self.front)
        heads = first[:, : turned * d].view(-1, turned, d)
        self.head_norm(heads)
        part = heads[..., : self.turning]
        part.copy_(rotated(part.reshape(len(x), -1), self.turning, rotation))
        kv = first[:, queries : queries + 2 * self.kv_heads * d]
        mixed = attend(layer, first[:, :queries].view(*workspace, self.heads, d), kv)
        self.add_linear(x, mixed * self.sigmoid(first[:, -queries:]), self.out)


class DeltaNet:
    """A gated delta net: projections, `gated_delta` over the request's state, a norm, a gate and a projection."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, front: Tensor) -> None:
        assert config.delta is not None
        gated_delta.load(norm.device)
        self.config = c = config.delta
        at, hidden, values = f"{prefix}.linear_attn", config.hidden_size, c.heads * c.value_dim
        self.linear, self.add_linear, self.silu = norm.products.linear, norm.products.add, norm.silu
        if c.grouped:
            rows = self._ungrouped(take, at, hidden)
        else:
            sizes = {"qkv": c.channels, "z": values, "b": c.heads, "a": c.heads}
            rows = torch.cat([take(f"{at}.in_proj_{name}.weight", size, hidden) for name, size in sizes.items()])
        self.sizes = c.channels, values, c.heads, c.heads
        self.front = norm.stored(norm.fold(rows, front))
        self.weights = (
            take(f"{at}.conv1d.weight", c.channels, 1, c.taps)[:, 0].contiguous(),
            take(f"{at}.A_log", c.heads).float(),
            take(f"{at}.dt_bias", c.heads).float(),
        )
        self.gate_norm = Norm(c.value_dim, config.norm_eps, torch.float32, norm.device)
        scale = self.gate_norm.scale(take(f"{at}.norm.weight", c.value_dim).float())
        self.scale = scale.expand(c.heads, -1).contiguous()
        self.out = norm.stored(take(f"{at}.out_proj.weight", hidden, values))

    def _ungrouped(self, take: WeightReader, at: str, hidden: int) -> Tensor:
        """The projections of all queries, keys, values, gates, b and a, each of all heads, from rows by key head."""
        c = self.config
        each = c.heads // c.key_heads
        sizes = c.key_dim, c.key_dim, each * c.value_dim, each * c.value_dim
        wide = take(f"{at}.in_proj_qkvz.weight", c.channels + c.heads * c.value_dim, hidden)
        narrow = take(f"{at}.in_proj_ba.weight", 2 * c.heads, hidden)
        parts = wide.view(c.key_heads, -1, hidden).split(sizes, 1)
        return torch.cat([p.flatten(0, 1) for p in (*parts, *narrow.view(c.key_heads, -1, hidden).split(each, 1))])

    def __call__(
        self, x: Tensor, h: Tensor, rotation: Tensor, attend: HybridAttend, layer: int, workspace: MLAShape
    ) -> None:
        """Add to x [R, hidden], in place; h [R, hidden] is the input of projections after the norm."""
        u, z, b, a = self.linear(h, self.front).split(self.sizes, 1)
        u, b, a = (part.view(*workspace, -1) for part in (u, b, a))
        made = attend.recur(layer, u, b, a, *self.weights).flatten(0, 1)
        self.gate_norm.each(made, self.scale)
        self.add_linear(x, made.flatten(1).mul_(self.silu(z.float())).to(x.dtype), self.out)
