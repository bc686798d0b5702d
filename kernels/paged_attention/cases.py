"""Cases of paged_attention: (q, cache, read_slots, bias, kv_heads[, value_dim, scale, sparse,
start, causal]).

Slots that must not be read hold NaN.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Arguments, Case

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
    latent: tuple[int, float] | None = None,
    window: int | None = None,
    with_start: bool = False,
) -> Case:
    """Requests with `lengths` cached tokens, then `width` new ones, causal or a random tree.

    latent: value_dim and scale of latent attention. window: size of a sliding window; positions that no query sees hold
    NaN and, like freed pages, map to the padding slot. with_start: pass the position of the first new token.
    """

    def make(g: Generator) -> Arguments:
        batch, reach = len(lengths), max(lengths, default=0) + width
        pages = -(-reach // page_size)
        order = torch.randperm(batch * pages, generator=g).view(batch, pages) + 1
        slots = (order[:, :, None] * page_size + torch.arange(page_size)).flatten(1)[:, :reach]
        bias = torch.full((batch, 1, width, reach), NONE)
        planes = 2 if latent is None else 1
        cache = torch.full(((batch * pages + 1) * page_size, planes, kv_heads, head_dim), float("nan"), dtype=dtype)
        cache[:page_size] = 0.0
        for row, length in enumerate(lengths):
            bias[row, 0, :, :length] = 0.0
            bias[row, 0, :, length : length + width].masked_fill_(_seen(width, tree, g), 0.0)
            if window is not None:
                far = torch.arange(reach) <= (length + torch.arange(width))[:, None] - window
                bias[row, 0].masked_fill_(far, NONE)
                slots[row, : max(0, length - window + 1)] = 0
            # A masked key that is read must be finite, so it maps to the padding slot.
            slots[row, length + width :] = 0
            used = slots[row, : length + width]
            used = used[used > 0]
            cache[used] = torch.randn(len(used), planes, kv_heads, head_dim, generator=g).to(dtype)
        q = torch.randn(batch, width, heads, head_dim, generator=g).to(dtype)
        more: tuple[object, ...] = latent or ()
        if with_start or window is not None:
            starts = (torch.tensor(lengths), not tree) if with_start else ()
            more = (*(latent or (None, None)), window is not None, *starts)
        return q, cache, slots, bias.to(dtype), kv_heads, *more

    kind = "tree" if tree else "causal"
    name = f"{list(lengths)}+{width} {kind} {heads}/{kv_heads}x{head_dim} page {page_size} {dtype}".replace(
        "torch.", ""
    )
    if latent is not None:
        name += f" latent {latent[0]}"
    if window is not None:
        name += f" window {window}"
    if with_start:
        name += " with start"
    return Case(name + note, make)


def _seen(width: int, tree: bool, g: Generator) -> Tensor:
    if not tree:
        return torch.ones(width, width).tril().bool()
    seen = torch.eye(width, dtype=torch.bool)
    for node in range(1, width):
        seen[node] |= seen[int(torch.randint(node, (1,), generator=g))]
    return seen


def _strided() -> Case:
    """q as the models pass it: the first columns of a wider projection."""
    dense = _attention((3, 9), 1, 4, 2, 8)

    def make(g: Generator) -> Arguments:
        q, *rest = dense.make(g)
        wide = torch.cat((q.flatten(2), torch.full((2, 1, 7), float("nan"))), 2)
        return wide[:, :, : 4 * 8].view(2, 1, 4, 8), *rest

    return Case("a view", make)


def _far(g: Generator) -> Arguments:
    """A pool with more elements than int32 can index, read at both ends."""
    slots = 2**23 + 64
    cache = torch.zeros(slots, 2, 1, 128, dtype=torch.bfloat16)
    read = torch.cat((torch.arange(slots - 40, slots), torch.arange(1, 31)))[torch.randperm(70, generator=g)][None]
    cache[read[0]] = torch.randn(70, 2, 1, 128, generator=g).to(torch.bfloat16)
    q = torch.randn(1, 3, 4, 128, generator=g).to(torch.bfloat16)
    return q, cache, read, torch.zeros(1, 1, 3, 70, dtype=torch.bfloat16), 1


def _long(lengths: tuple[int, ...], width: int, dtype: torch.dtype, latent: bool = False, **more: object) -> Case:
    """Several splits of keys, with the head sizes of a real model."""
    if latent:
        case = _attention(lengths, width, 16, 1, 576, 16, dtype, latent=(512, 192**-0.5), **more)
    else:
        case = _attention(lengths, width, 8, 2, 128, 16, dtype, **more)
    return replace(case, size="medium")


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
    _attention((7,), 1, 4, 1, 12, latent=(8, 0.3)),
    _attention((0,), 1, 1, 1, 7, latent=(1, 1.0), note=", one column of values"),
    _attention((5, 0, 13), 3, 3, 1, 10, latent=(10, 0.2), note=", all columns are values"),
    _attention((40, 3), 7, 4, 1, 48, page_size=7, tree=True, latent=(32, 40**-0.5)),
    _attention((5, 33), 1, 6, 2, 20, latent=(16, 0.25), note=", two key heads"),
    _attention((9, 30), 4, 4, 1, 24, dtype=torch.bfloat16, tree=True, latent=(16, 0.2)),
    _attention((9, 30), 1, 4, 1, 24, dtype=torch.float16, latent=(16, 0.2)),
    _attention((19,), 1, 4, 2, 8, window=1),
    _attention((19, 2, 40), 5, 4, 2, 8, page_size=7, window=6),
    _attention((19, 2), 6, 3, 3, 12, page_size=1, tree=True, window=9),
    _attention((40, 9), 3, 4, 2, 16, dtype=torch.bfloat16, window=12),
    _attention((40, 9), 3, 4, 1, 24, latent=(16, 0.2), window=12),
    _attention((300, 9), 2, 2, 1, 8, note=", two splits"),
    _attention((600, 20), 1, 2, 1, 8, window=40),
    _attention((300, 9, 0), 2, 2, 1, 8, with_start=True),
    _attention((127, 255, 9), 2, 2, 1, 8, note=", one token into a tile", with_start=True),
    _attention((128, 256, 0), 1, 2, 1, 8, note=", a tile with a query's own key only", with_start=True),
    _attention((5, 40), 3, 4, 1, 24, latent=(16, 0.2), tree=True, with_start=True),
    _long((700, 255, 511), 1, torch.bfloat16),
    _long((700, 255, 511), 8, torch.bfloat16, tree=True),
    _long((700, 255, 511), 5, torch.float16, window=300),
    _long((700, 255, 3), 5, torch.bfloat16, tree=True, with_start=True),
    _long((700, 255, 3), 20, torch.bfloat16, tree=True, with_start=True),
    _long((130, 0), 90, torch.float16, with_start=True),
    _long((700, 255, 511, 3) * 12, 1, torch.bfloat16, with_start=True),
    _long((300,), 3, torch.float32),
    _long((400, 20), 4, torch.bfloat16, latent=True, tree=True),
    Case("a large pool", _far, size="large"),
)
