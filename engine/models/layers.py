"""Components that the models share: projections, norm, one decoder layer.

Activations are rows of tokens, [M, width] with M = B * W. Projections are stored [in, out]: on a CPU `x @ w` on that
layout is up to twice as fast as F.linear on the [out, in] layout of checkpoints.

Buffers that the layers share in one forward, with each operation's views created once per shape.

On a CPU a small model spends more time on creating views and allocating than on arithmetic.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import silu

from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.linear_ops import linear_ops
from specmatrix.engine.models.rope import pair_up, rotate
from specmatrix.engine.models.weights import WeightReader
from specmatrix.kernels.backend import on_triton
from specmatrix.kernels.decoder_layer import MAX_WIDTH, CompiledLayer, KVArrays
from specmatrix.kernels.fused_linear import MAX_ROWS, NOTHING, PART, Fusion, NextNorm, fused_linear
from specmatrix.kernels.rms_norm import rms_norm
from specmatrix.kernels.silu_mul import silu_mul

KEPT_SHAPES = 32
KEPT_ROWS = 256


class Workspace(NamedTuple):
    """For B requests of W tokens in R = B * W rows.

    qkv [R, (heads + 2 * kv_heads) * head_dim]; its views: heads [R, heads + kv_heads, head_dim], which are rotated, the
    same as complex numbers rotated [R, heads + kv_heads, head_dim / 2] (float32 only), q [B, W, heads, head_dim] and
    kv [B * W, 2 * kv_heads * head_dim]. gate_up [R, 2 * inner], halves gate and up. scaled [R, hidden] and
    partial_sumsq float32 [R, parts]: the norm between attention and gates, see `kernels.fused_linear`.
    """

    batch: int
    width: int
    qkv: Tensor
    heads: Tensor
    rotated: Tensor | None
    q: Tensor
    kv: Tensor
    gate_up: Tensor
    gate: Tensor
    up: Tensor
    scaled: Tensor
    partial_sumsq: Tensor


class Workspaces:
    """The workspaces of one model; a few small shapes are cached, larger ones created anew."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._kept: OrderedDict[tuple[int, int], Workspace] = OrderedDict()

    def of(self, batch: int, width: int) -> Workspace:
        """The workspace of a shape; valid until the next forward of the same shape.

        On a GPU each forward has its own, because a graph needs the memory that it was captured with.
        """
        workspace = self._kept.get((batch, width))
        if workspace is None:
            # Created as ordinary tensors, so that a model can be called inside and outside of inference mode.
            with torch.inference_mode(False):
                workspace = self._make(batch, width)
            if batch * width <= KEPT_ROWS and self._device.type == "cpu":
                self._kept[batch, width] = workspace
                if len(self._kept) > KEPT_SHAPES:
                    self._kept.popitem(last=False)
        return workspace

    def _make(self, batch: int, width: int) -> Workspace:
        c, d = self._config, self._config.head_dim
        rows = batch * width
        queries, keys = c.num_heads * d, c.num_kv_heads * d
        qkv = torch.empty(rows, queries + 2 * keys, dtype=self._dtype, device=self._device)
        gate_up = torch.empty(rows, 2 * c.intermediate_size, dtype=self._dtype, device=self._device)
        heads = qkv[:, : queries + keys].view(rows, -1, d)
        rotated = None
        if self._dtype is torch.float32:
            rotated = torch.view_as_complex(heads.view(rows, -1, d // 2, 2))
        return Workspace(
            batch=batch,
            width=width,
            qkv=qkv,
            heads=heads,
            rotated=rotated,
            q=qkv[:, :queries].view(batch, width, c.num_heads, d),
            kv=qkv[:, queries:],
            gate_up=gate_up,
            gate=gate_up[:, : c.intermediate_size],
            up=gate_up[:, c.intermediate_size :],
            scaled=torch.empty(rows, c.hidden_size, dtype=self._dtype, device=self._device),
            partial_sumsq=torch.empty(rows, -(-c.hidden_size // PART), device=self._device),
        )


# Rows up to which whole layers are fused; with more, up to MAX_ROWS, gates alone are.
FUSED_ROWS = 64
# A draft's mask token, and the state [A] of each in place of the target's, None if it reads none.
Masks: TypeAlias = tuple[int, Tensor | None]


class Attend(Protocol):
    """Stores one layer's new keys and values, then attends to all that each query may see.

    q [B, W, heads, head_dim] and kv [B * W, 2 * kv_heads * head_dim] (a row: key heads, then value heads) are views
    -> [B * W, heads * head_dim]. arrays: what a compiled layer reads and writes instead.
    """

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor: ...

    def arrays(self, layer: int) -> KVArrays: ...


def steady_sigmoid(x: Tensor) -> Tensor:
    """sigmoid(x) whose bits do not depend on the position. torch.sigmoid uses another routine for the last few numbers
    of a chunk, and the chunks depend on the shape and the number of threads."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def steady_silu(x: Tensor) -> Tensor:
    """silu(x) whose bits do not depend on the position, see `steady_sigmoid`."""
    wide = x.float()
    return torch.div(wide, torch.neg(wide).exp_().add_(1.0)).to(x.dtype)


class Norm:
    """RMS norm over the last axis, and its interface to the projections after it.

    `folded` (float32 on a CPU, where calls cost more than arithmetic): x / sqrt(|x|^2 + width * eps) in three calls;
    the factor sqrt(width) and the norm's weight are folded into the projection after it. Otherwise the fused call,
    because folding would round half-precision weights again. `compiled`: small layers after it are a CompiledLayer.
    ranks: the ranks that share the layers after the norm. own: their matrix products, without sums over the ranks. silu
    and sigmoid: the variants for the layers after the norm.
    """

    def __init__(
        self,
        width: int,
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        self.dtype, self.device, self.ranks = dtype, device, ranks
        self.own = linear_ops(deterministic)
        self.products = self.own.over(ranks)
        steady = deterministic and device.type == "cpu"
        self.silu, self.sigmoid = (steady_silu, steady_sigmoid) if steady else (silu, torch.sigmoid)
        self.folded = dtype is torch.float32 and device.type == "cpu"
        self.compiled = self.folded and ranks.size == 1 and width <= MAX_WIDTH
        self.eps = eps
        self._fused = not deterministic and dtype is not torch.float32 and ranks.size == 1
        self._shape = (width,)
        self._root = math.sqrt(width)
        self._tail = torch.tensor(math.sqrt(width * eps), dtype=dtype, device=device)

    def uses_fused_linear(self, x: Tensor, most: int = FUSED_ROWS) -> bool:
        """Whether projections of x [R, in] are fused with their neighbouring operations (`fused_linear`), up to
        `most` rows.

        The fused kernel sums in another order than the one for more rows, so deterministic models and several ranks do
        not use it.
        """
        return self._fused and x.shape[0] <= most and on_triton(x)

    def fold(self, weights: Tensor, weight: Tensor) -> Tensor:
        """The projection [out, width] after this norm, with the norm's factors folded in."""
        return weights * self.scale(weight) if self.folded else weights

    def stored(self, weight: Tensor) -> Tensor:
        """A projection of the layers after this norm in the engine's layout (`stored`), with row invariance checked."""
        return self.own.hold(stored(weight))

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """The input that a folded projection expects."""
        if self.folded:
            length: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
            return x / length.hypot_(self._tail)
        if on_triton(x):
            return rms_norm(x.flatten(0, -2), weight[None], self.eps).view(x.shape)
        if weight.dtype is not x.dtype:  # a zero-centred norm, whose 1 + w would lose bits in half precision
            return torch.rms_norm(x.float(), self._shape, weight, self.eps).to(x.dtype)
        return torch.rms_norm(x, self._shape, weight, self.eps)

    def scale(self, weight: Tensor) -> Tensor:
        """The norm's weight in the form that `whole` takes."""
        return weight * self._root if self.folded else weight

    def whole(self, x: Tensor, scale: Tensor) -> Tensor:
        """The complete norm, with nothing left to a projection."""
        return self(x, scale).mul_(scale) if self.folded else self(x, scale)

    def each(self, x: Tensor, scale: Tensor) -> None:
        """The norm of each row of x [R, H, width] in place; scale [H, width], one weight for each of the H."""
        if self.folded:
            length: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
            x.div_(length.hypot_(self._tail)).mul_(scale)
        elif on_triton(x):
            heads = x.flatten(1)
            rms_norm(heads, scale, self.eps, out=heads)
        else:
            torch.mul(torch.rms_norm(x, self._shape, None, self.eps), scale, out=x)


class HeadNorm:
    """RMS norm of each query and key head before rotation, as in Qwen3: one weight for queries, one for keys."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, dtype: torch.dtype) -> None:
        d = config.head_dim
        turning = config.rotary_dim
        q, k = (pair_up(take(f"{prefix}.{name}_norm.weight", d)[:, None], d, turning).view(1, d) for name in "qk")
        weight = torch.cat((q.expand(config.num_heads, d), k.expand(config.num_kv_heads, d)))
        self.norm = Norm(d, config.norm_eps, dtype, weight.device)
        self.scale = self.norm.scale(weight)

    def __call__(self, heads: Tensor) -> None:
        """heads [R, heads + kv_heads, head_dim], query heads first, in place."""
        self.norm.each(heads, self.scale)


class DecoderLayer:
    """One Llama decoder layer: grouped-query attention and a gated feed-forward part, each after a norm.

    prefix: of its tensor names. front: name of the norm before attention, None for none (EAGLE's first layer).
    paired (EAGLE-3): the q, k and v projections read concatenated pairs, 2 * hidden wide: a normalised embedding and
    the residual stream after the front norm.
    """

    def __init__(
        self,
        take: WeightReader,
        prefix: str,
        config: ModelConfig,
        norm: Norm,
        front: str | None = "input_layernorm",
        paired: bool = False,
    ) -> None:
        heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self.norm = norm
        self.linear, self.add_linear = norm.products.linear, norm.products.add
        self.rotated, self.head_dim = heads + kv_heads, d
        width = 2 * hidden if paired else hidden
        q = pair_up(take(f"{prefix}.self_attn.q_proj.weight", heads * d, width), d)
        k = pair_up(take(f"{prefix}.self_attn.k_proj.weight", kv_heads * d, width), d)
        v = take(f"{prefix}.self_attn.v_proj.weight", kv_heads * d, width)
        self.head_norm = HeadNorm(take, f"{prefix}.self_attn", config, norm.dtype) if config.head_norms else None
        self.input_norm = None if front is None else take(f"{prefix}.{front}.weight", hidden)
        self.post_norm = take(f"{prefix}.post_attention_layernorm.weight", hidden)
        gate = take(f"{prefix}.mlp.gate_proj.weight", inner, hidden)
        up = take(f"{prefix}.mlp.up_proj.weight", inner, hidden)
        qkv = torch.cat((q, k, v))
        if self.input_norm is not None:
            qkv = torch.cat((qkv[:, :-hidden], norm.fold(qkv[:, -hidden:], self.input_norm)), 1)
        keep = stored if norm.compiled else norm.stored
        self.qkv = keep(qkv)
        self.out = keep(take(f"{prefix}.self_attn.o_proj.weight", hidden, heads * d))
        self.gate_up = keep(norm.fold(torch.cat((gate, up)), self.post_norm))
        self.down = keep(take(f"{prefix}.mlp.down_proj.weight", hidden, inner))
        self.compiled: CompiledLayer | None = None
        if norm.compiled:
            scale = None if self.head_norm is None else self.head_norm.scale
            weights = self.qkv, self.out, self.gate_up, self.down
            self.compiled = CompiledLayer(*weights, heads, kv_heads, config.norm_eps, scale)

    def __call__(self, x: Tensor, rotation: Tensor, attend: Attend, layer: int, workspace: Workspace) -> None:
        """Add this layer's attention and feed-forward output to the residual stream x [R, hidden], in place."""
        if self.compiled is not None and not on_triton(x):
            h = x if self.input_norm is None else None
            self.compiled.attention(x, h, rotation, attend.arrays(layer))
        else:
            self.attention(x, self.front(x), rotation, attend, layer, workspace)
        self.feed_forward(x, workspace)

    def front(self, x: Tensor) -> Tensor:
        """x [R, hidden] after the norm before attention, if there is one."""
        return x if self.input_norm is None else self.norm(x, self.input_norm)

    def attention(
        self, x: Tensor, h: Tensor, rotation: Tensor, attend: Attend, layer: int, workspace: Workspace
    ) -> None:
        """Add the attention output to x [R, hidden], in place; h [R, in] is the input of the projections."""
        if self.compiled is not None and not on_triton(x):
            self.compiled.attention(x, h, rotation, attend.arrays(layer))
            return
        fused, rotating = self.norm.uses_fused_linear(h), NOTHING
        if fused and self.head_norm is None:
            rotating = Fusion(rotation=rotation[:, 0].contiguous(), heads=self.rotated)
        if fused:
            fused_linear(h, self.qkv, workspace.qkv, rotating)
        else:
            self.linear(h, self.qkv, workspace.qkv)
        if self.head_norm is not None:
            self.head_norm(workspace.heads)
        if workspace.rotated is not None:
            workspace.rotated.mul_(rotation)
        elif rotating is NOTHING:
            rotate(workspace.qkv, self.rotated, self.head_dim, rotation)
        mixed = attend(layer, workspace.q, workspace.kv)
        if fused:
            post_norm = NextNorm(self.post_norm, workspace.scaled, workspace.partial_sumsq)
            fused_linear(mixed, self.out, x, Fusion(add=True, next_norm=post_norm))
        else:
            self.add_linear(x, mixed, self.out)

    def feed_forward(self, x: Tensor, workspace: Workspace) -> None:
        """Add the gated feed-forward output to x [R, hidden], in place."""
        if self.compiled is not None and not on_triton(x):
            self.compiled.feed_forward(x)
            return
        if self.norm.uses_fused_linear(x):
            normed = Fusion(workspace.partial_sumsq, self.norm.eps, gated=True)
            fused_linear(workspace.scaled, self.gate_up, workspace.gate, normed)
            fused_linear(workspace.gate, self.down, x, Fusion(add=True))
            return
        self.gated(x, self.norm(x, self.post_norm), workspace)

    def gated(self, x: Tensor, h: Tensor, workspace: Workspace) -> None:
        """Add the feed-forward output for its normed input h [R, hidden] to x [R, hidden], in place."""
        if self.norm.uses_fused_linear(h, MAX_ROWS):
            inner = fused_linear(h, self.gate_up, workspace.gate, Fusion(gated=True))
        else:
            self.linear(h, self.gate_up, workspace.gate_up)
            inner = silu_mul(workspace.gate_up) if on_triton(x) else self.norm.silu(workspace.gate).mul_(workspace.up)
        self.add_linear(x, inner, self.down)


def stored(weight: Tensor) -> Tensor:
    """A checkpoint's projection [out, in] in the engine's layout: [in, out], contiguous."""
    return weight.t().contiguous()
