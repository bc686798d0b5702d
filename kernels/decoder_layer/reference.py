"""The reference of decoder_layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from specmatrix.kernels.paged_attention.reference import paged_attention


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
    """In float64, except that stored keys and values are rounded to float32, as the cache holds them."""
    rows, dim = len(x), out.shape[0] // heads
    stream = x.double()
    made = (_norm(stream, eps) if h is None else h.double()) @ qkv.double()
    turned = made[:, : (heads + kv_heads) * dim].view(rows, heads + kv_heads, dim)
    if head_scale is not None:
        turned = _norm(turned, eps) * head_scale.double()
    pairs = torch.view_as_complex(turned.reshape(rows, heads + kv_heads, dim // 2, 2).contiguous())
    turned = torch.view_as_real(pairs * rotation.to(torch.complex128)).flatten(2)
    cache[write] = torch.cat((turned[:, heads:].flatten(1), made[:, (heads + kv_heads) * dim :]), 1).float()
    requests, width = len(read), bias.shape[2]
    q = turned[:, :heads].reshape(requests, width, heads, dim)
    split = cache.double().view(len(cache), 2, kv_heads, dim)
    stream += paged_attention(q, split, read, bias, kv_heads) @ out.double()
    gate, up = (_norm(stream, eps) @ gate_up.double()).chunk(2, 1)
    x.copy_(stream + (silu(gate) * up) @ down.double())
    return x


def _norm(x: Tensor, eps: float) -> Tensor:
    """An RMS norm whose factor sqrt(width) is folded into the weights after it."""
    return x / (x.square().sum(-1, keepdim=True) + x.shape[-1] * eps).sqrt()
