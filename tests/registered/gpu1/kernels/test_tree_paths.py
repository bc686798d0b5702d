"""Deterministic attention over a tree's accepted path, whose keys lie apart, against the same keys in a row."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels.paged_attention import paged_attention, plan_reads
from specmatrix.kernels.paged_attention.triton import shape

# Heads, key heads, key width and value width of a dense target and of one with latent attention.
TARGETS = {"llama": (4, 2, 32, None), "deepseek": (4, 1, 48, 32)}
# By how many slots each of a path's keys lies behind its place in a chain.
GAPS = ((0, 1, 1), (0, 2, 4), (1, 3, 5))
# The path's keys have the largest scores, so that the rounding of a block's weights depends on where they lie.
STRONG = 4


def outputs(dtype, target, start, gaps):
    """A query's result over `start` committed keys and a path, in a row and apart."""
    heads, kv_heads, dim, value_dim = target
    generator, total = torch.Generator().manual_seed(start), start + len(gaps)
    row = (1 if value_dim else 2) * kv_heads * dim
    keys = torch.randn(total, row, generator=generator)
    keys[start:] *= STRONG
    q = torch.randn(1, 1, heads, dim, generator=generator).to(dtype).cuda()
    for apart in ((0,) * len(gaps), gaps):
        places = [*range(start), *(start + number + gap for number, gap in enumerate(apart))]
        cache, bias = torch.zeros(start + 16, row, dtype=dtype), torch.full((1, 1, 1, start + 16), float("-inf"))
        cache[places], bias[..., places] = keys.to(dtype), 0
        slots = torch.arange(start + 16)[None].cuda()
        reads = plan_reads(slots, bias.to(dtype).cuda(), heads, kv_heads, dim, value_dim=value_dim)
        yield paged_attention(q, cache.view(-1, dim).cuda(), reads).float().cpu()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_path_keeps_its_bits_within_a_block_of_keys_and_is_rounded_across_blocks(dtype, target):
    heads, kv_heads, dim, value_dim = target
    block = shape(dim, value_dim or dim, dtype.itemsize, heads // kv_heads).keys
    step, rounded = torch.finfo(dtype).eps, 0
    for start in (*range(block - 12, block + 4), *range(3 * block - 12, 3 * block + 4)):
        for gaps in GAPS:
            row, apart = outputs(dtype, target, start, gaps)
            if any((start + n) // block != (start + n + gap) // block for n, gap in enumerate(gaps)):
                rounded += not torch.equal(row, apart)
                torch.testing.assert_close(apart, row, rtol=2 * step, atol=2 * step * STRONG)
            else:
                assert torch.equal(row, apart), (start, gaps)
    assert rounded, "`lossless` allows trees in bf16 ties because of this"
