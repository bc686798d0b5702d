"""A small dense decoder layer on a CPU in two calls, because call overhead would exceed the arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import compiled_module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray

# In wider layers arithmetic costs more than calls, and torch's products use several threads.
MAX_WIDTH = 1024


class KVArrays(NamedTuple):
    """One layer's KV cache in a step: cache float32 [S, 2 * kv_heads * head_dim], a row key heads then value heads;
    write int64 [B * W] and read int64 [B, T]: slots; bias float32 [B, 1, W, T]: 0 where a query attends."""

    cache: Array
    write: Array
    read: Array
    bias: Array


def as_array(tensor: Tensor) -> Array:
    """A numpy view of a CPU tensor. torch's hooks, which report reads on the host, do not see it."""
    with torch._C.DisableTorchFunction():
        return tensor.numpy()


class CompiledLayer:
    """Grouped-query attention and a gated feed-forward part, each after an RMS norm and added to the residual stream.

    Weights float32 [in, out], contiguous, with the norms' weights folded in: a norm is x / sqrt(|x|^2 + width * eps).
    qkv [in, (heads + 2 * kv_heads) * head_dim], queries and keys as pairs; gate_up [hidden, 2 * inner]. head_scale
    [heads + kv_heads, head_dim]: a norm of each query and key head, with sqrt(head_dim) folded in; None without one.
    A row's bits do not depend on the other rows of a call. KernelError on other shapes, dtypes and strides; ConfigError
    without numba.
    """

    def __init__(
        self,
        qkv: Tensor,
        out: Tensor,
        gate_up: Tensor,
        down: Tensor,
        heads: int,
        kv_heads: int,
        eps: float,
        head_scale: Tensor | None = None,
    ) -> None:
        (wide, hidden), dim = out.shape, out.shape[0] // heads
        inner = down.shape[0]
        columns = wide + 2 * kv_heads * dim
        weights = {"qkv": (qkv, (len(qkv), columns)), "gate_up": (gate_up, (hidden, 2 * inner))}
        preconditions.shapes("decoder_layer", **weights, down=(down, (inner, hidden)))
        preconditions.dtype("decoder_layer", (torch.float32,), qkv=qkv, out=out, gate_up=gate_up, down=down)
        preconditions.contiguous("decoder_layer", qkv=qkv, out=out, gate_up=gate_up, down=down)
        self._loops = compiled_module(__name__, "float32 models")
        self._qkv, self._out, self._gate_up, self._down = map(as_array, (qkv, out, gate_up, down))
        norms = qkv.new_empty(0, (heads + kv_heads) * dim) if head_scale is None else head_scale.reshape(1, -1)
        self._head_scale = as_array(norms.contiguous())
        self._heads, self._kv_heads = heads, kv_heads
        self._tail, self._head_tail, self._factor = hidden * eps, dim * eps, dim**-0.5

    def attention(self, x: Tensor, h: Tensor | None, rotation: Tensor, kv: KVArrays) -> None:
        """Store the keys and values of x [R, hidden], attend, and add the result to x in place.

        h [R, in]: the input of the projections; None: x after the norm. rotation complex64 [R, 1, head_dim / 2].
        """
        rows = as_array(x)
        self._loops.attention(
            rows,
            rows if h is None else as_array(h),
            h is None,
            self._qkv,
            self._out,
            self._head_scale,
            self._tail,
            self._head_tail,
            as_array(rotation),
            *kv,
            self._heads,
            self._kv_heads,
            self._factor,
        )

    def feed_forward(self, x: Tensor) -> None:
        """Add silu(gate) * up, projected down, of the normed x [R, hidden] to x in place."""
        self._loops.feed_forward(as_array(x), self._gate_up, self._down, self._tail)


def decoder_layer(
    x: Tensor,
    h: Tensor | None,
    qkv: Tensor,
    out: Tensor,
    gate_up: Tensor,
    down: Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
    head_scale: Tensor | None,
    rotation: Tensor,
    cache: Tensor,
    write: Tensor,
    read: Tensor,
    bias: Tensor,
) -> Tensor:
    """One call of a CompiledLayer, with its arguments as tensors; x and cache are modified -> x."""
    layer = CompiledLayer(qkv, out, gate_up, down, heads, kv_heads, eps, head_scale)
    tensors = {"x": x, "rotation": rotation, "cache": cache, "write": write, "read": read, "bias": bias}
    preconditions.contiguous("decoder_layer", **tensors, **({} if h is None else {"h": h}))
    if len(x) and not bool((bias == 0).any(-1).all()):
        raise KernelError("decoder_layer: bias masks every key of a query; each query needs at least one 0")
    layer.attention(x, h, rotation, KVArrays(*map(as_array, (cache, write, read, bias))))
    layer.feed_forward(x)
    return x
