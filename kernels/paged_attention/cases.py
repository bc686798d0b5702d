"""Cases of paged_attention: (q, cache, read_slots, bias, kv_heads). Slots that nobody may read hold NaN."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from kernels.case import Arguments, Case

NONE = float("-inf")


def _attention(
    lengths: tuple[int, ...],
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    tree: bool = False,
    note: str = "",
) -> Case:
    """Requests with the given tokens before the step, then `width` new ones, causal or a random tree."""

    def make(g: Generator) -> Arguments:
        batch, reach = len(lengths), max(lengths, default=0) + width
        pages = -(-reach // page_size)
        order = torch.randperm(batch * pages, generator=g).view(batch, pages) + 1
        slots = (order[:, :, None] * page_size + torch.arange(page_size)).flatten(1)[:, :reach]
        bias = torch.full((batch, 1, width, reach), NONE)
        cache = torch.full(((batch * pages + 1) * page_size, 2, kv_heads, head_dim), float("nan"), dtype=dtype)
        cache[:page_size] = 0.0
        for row, length in enumerate(lengths):
            bias[row, 0, :, :length] = 0.0
            bias[row, 0, :, length : length + width].masked_fill_(_seen(width, tree, g), 0.0)
            # A key that is masked but read must be finite, as the padding is; it takes the padding slot.
            slots[row, length + width :] = 0
            used = slots[row, : length + width]
            cache[used] = torch.randn(len(used), 2, kv_heads, head_dim, generator=g).to(dtype)
        q = torch.randn(batch, width, heads, head_dim, generator=g).to(dtype)
        return q, cache, slots, bias.to(dtype), kv_heads

    kind = "tree" if tree else "causal"
    name = f"{list(lengths)}+{width} {kind} {heads}/{kv_heads}x{head_dim} page {page_size} {dtype}".replace(
        "torch.", ""
    )
    return Case(name + note, make)


def _seen(width: int, tree: bool, g: Generator) -> Tensor:
    if not tree:
        return torch.ones(width, width).tril().bool()
    seen = torch.eye(width, dtype=torch.bool)
    for node in range(1, width):
        seen[node] |= seen[int(torch.randint(node, (1,), generator=g))]
    return seen


def _strided() -> Case:
    """q as the models pass it: the head of a wider projection."""
    dense = _attention((3, 9), 1, 4, 2, 8)

    def make(g: Generator) -> Arguments:
        q, *rest = dense.make(g)
        wide = torch.cat((q.flatten(2), torch.full((2, 1, 7), float("nan"))), 2)
        return wide[:, :, : 4 * 8].view(2, 1, 4, 8), *rest

    return Case("a view", make)


CASES = (
    _attention((), 1, 2, 1, 4),
    _attention((0,), 1, 1, 1, 2),
    _attention((7,), 1, 4, 2, 8, note=", one page exactly full after it"),
    _attention((8,), 1, 4, 2, 8, note=", one token over"),
    _attention((31,), 1, 2, 2, 8),
    _attention((32,), 1, 2, 2, 8),
    _attention((5, 0, 13), 3, 4, 2, 8),
    _attention((5, 0, 13), 6, 6, 2, 12, page_size=1, tree=True),
    _attention((40, 3), 7, 3, 1, 32, page_size=64, tree=True),
    _attention((0, 0), 19, 4, 4, 6),
    _attention((9, 30), 4, 4, 2, 16, dtype=torch.bfloat16, tree=True),
    _attention((9, 30), 1, 4, 2, 16, dtype=torch.float16),
    _strided(),
)
