"""Cases of decoder_layer: (x, h, qkv, out, gate_up, down, heads, kv_heads, eps, head_scale, rotation, cache, write,
read, bias)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _case(
    requests: int,
    width: int,
    length: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    dim: int,
    inner: int,
    kind: Literal["", "head norms", "own input", "window"] = "",
    size: Literal["small", "medium"] = "small",
) -> Case:
    """Each request reads `length` slots; the step's own tokens are in the last `width`, masked causally. own input: the
    projections read an input of another width, as in EAGLE-3. window: a query sees its last 5 positions only."""

    def make(g: Generator) -> Arguments:
        rows, wide = requests * width, hidden + 3 if kind == "own input" else hidden
        sizes = (wide, (heads + 2 * kv_heads) * dim), (heads * dim, hidden), (hidden, 2 * inner), (inner, hidden)
        # The norm before a projection leaves rows of length 1: its factor sqrt(hidden) is in the weights.
        weights = [
            torch.randn(*shape, generator=g) * (1.0 if place in (0, 2) else shape[0] ** -0.5)
            for place, shape in enumerate(sizes)
        ]
        slots = torch.randperm(requests * length + 2, generator=g)[: requests * length].view(requests, length)
        causal = torch.arange(length) <= torch.arange(length - width, length)[:, None]
        if kind == "window":
            causal &= torch.arange(length) > torch.arange(length - width, length)[:, None] - 5
        bias = torch.zeros(requests, 1, width, length).masked_fill_(~causal, float("-inf"))
        angle = torch.randn(rows, 1, dim // 2, generator=g)
        return (
            torch.randn(rows, hidden, generator=g),
            torch.randn(rows, wide, generator=g) / wide**0.5 if kind == "own input" else None,
            *weights,
            heads,
            kv_heads,
            1e-5,
            torch.rand(heads + kv_heads, dim, generator=g) * dim**0.5 if kind == "head norms" else None,
            torch.polar(torch.ones_like(angle), angle),
            torch.randn(requests * length + 2, 2 * kv_heads * dim, generator=g),
            slots[:, length - width :].flatten().contiguous(),
            slots,
            bias,
        )

    shape = f"{requests} x {width} of {length}, {hidden} wide, {heads}/{kv_heads} heads of {dim}, {inner}"
    return Case(f"{shape} {kind}".strip(), make, size)


CASES = (
    _case(0, 1, 4, 8, 2, 1, 4, 6),
    _case(1, 1, 1, 5, 1, 1, 2, 3),
    _case(1, 1, 7, 16, 4, 2, 4, 10),
    _case(2, 3, 9, 18, 4, 4, 6, 7, "head norms"),
    _case(3, 1, 12, 13, 3, 1, 10, 33, "own input"),
    _case(2, 5, 21, 24, 6, 2, 8, 17, "window"),
    _case(5, 1, 40, 32, 4, 2, 8, 50),
    _case(9, 4, 70, 128, 4, 2, 32, 384, size="medium"),
    _case(1, 65, 130, 96, 6, 2, 16, 200, "head norms", size="medium"),
)
