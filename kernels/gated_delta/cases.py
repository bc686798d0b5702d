"""Cases of gated_delta: (u, b, a, conv, a_log, dt_bias, windows, states, read, write, parents[, chunk])."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.tree_layout.cases import random_parents


def _case(
    name: str,
    batch: int,
    tokens: int,
    tree: bool = False,
    sizes: tuple[int, int, int, int, int] = (2, 6, 8, 12, 4),
    lengths: list[int] | None = None,
    dtype: torch.dtype = torch.float32,
    chunk: bool = False,
) -> Case:
    """sizes: Hk, Hv, Dk, Dv, K. lengths: of chunks, whose last token writes the slot that the first one read."""
    key_heads, heads, key_dim, value_dim, taps = sizes
    channels = 2 * key_heads * key_dim + heads * value_dim

    def make(g: Generator) -> Arguments:
        slots = 1 + batch + batch * tokens
        u, gates = torch.randn(batch, tokens, channels, generator=g), torch.randn(2, batch, tokens, heads, generator=g)
        conv, windows = torch.randn(channels, taps, generator=g), torch.randn(slots, taps - 1, channels, generator=g)
        a_log, dt_bias = torch.rand(heads, generator=g).log(), torch.randn(heads, generator=g)
        states = torch.randn(slots, heads, key_dim, value_dim, generator=g)
        read = torch.randperm(batch, generator=g) + 1
        write = torch.arange(1 + batch, slots).view(batch, tokens)
        if lengths is not None:
            ends = torch.tensor(lengths)[:, None] - 1 == torch.arange(tokens)
            write = torch.where(ends, read[:, None], 0)
        parents = random_parents(batch, tokens, g) if tree else None
        wide = u.to(dtype), *gates.to(dtype), conv.to(dtype)
        return *wide, a_log, dt_bias, windows.to(dtype), states, read, write, parents, *([True] if chunk else [])

    return Case(name, make, "medium" if sizes[2] > 64 else "small")


CASES = (
    _case("no request", 0, 3),
    _case("one token", 1, 1),
    _case("chains", 2, 5),
    _case("trees", 3, 9, tree=True),
    _case("a tree narrower than the window", 1, 2, tree=True, sizes=(1, 3, 5, 4, 6)),
    _case("chunks", 3, 11, lengths=[11, 1, 7]),
    _case("a chunk of padding", 2, 4, lengths=[0, 3]),
    _case("one head of one number", 2, 3, sizes=(1, 1, 1, 1, 2)),
    _case("no window", 2, 3, sizes=(3, 3, 4, 6, 1)),
    _case("trees in bfloat16", 2, 6, tree=True, dtype=torch.bfloat16),
    _case("chunks of any order", 2, 100, False, (1, 2, 8, 12, 4), [70, 0], torch.bfloat16, True),
    _case("a chunk of any order in float16", 1, 64, False, (2, 2, 5, 16, 3), [63], torch.float16, True),
    _case("a short chunk of any order", 2, 9, lengths=[9, 3], dtype=torch.bfloat16, chunk=True),
    _case("a chunk of any order in float32", 1, 70, False, (1, 1, 4, 4, 2), [70], chunk=True),
    _case("chunks of wide heads", 2, 200, False, (2, 4, 128, 128, 4), [193, 150], torch.bfloat16, True),
)
