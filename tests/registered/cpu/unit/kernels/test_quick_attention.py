"""The tile and split of a step's attention where bits may depend on the step."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels.paged_attention import eager
from specmatrix.kernels.paged_attention import triton as attention

WIDE = attention.AttentionShape(32, 128, 128, 0, warps=4, stages=2)


@pytest.mark.parametrize(
    ("rows", "length", "pairs", "tile", "split"),
    [
        (4, 1280, 8, WIDE._replace(rows=16), 128),
        (32, 1280, 8, WIDE, 128),
        (4, 1280, 256, WIDE._replace(rows=16, keys=64, warps=2), 256),
        (17, 1280, 256, WIDE._replace(keys=64, warps=2), 256),
        (4, 8192, 8, WIDE._replace(rows=16, keys=64, warps=2), 256),
    ],
)
def test_few_requests_take_short_splits_and_many_small_tiles(rows, length, pairs, tile, split):
    assert attention.quick(WIDE, rows, length, pairs) == (tile, split)


def test_latent_heads_and_single_precision_keep_their_tile():
    for head_dim, value_dim, size, group in ((576, 512, 2, 128), (256, 256, 4, 1)):
        tile = attention.shape(head_dim, value_dim, size, group)
        assert attention.quick(tile, 1, 1280, 8) == (tile, attention.SPLIT)


def test_deterministic_sums_are_exact_in_float64_whatever_their_order():
    """Outputs kept in float64 show the last bit of each sum, which a float32 output would round away."""
    g = torch.Generator().manual_seed(3)
    batch, heads, kv_heads, head_dim, length = 2, 4, 2, 16, 300
    q = torch.randn(batch, 1, heads, head_dim, generator=g, dtype=torch.float64)
    cache = torch.randn(length * 2 * kv_heads, head_dim, generator=g, dtype=torch.float64)
    bias = torch.zeros(batch, 1, 1, length, dtype=torch.float64)

    def attended(order: torch.Tensor) -> torch.Tensor:
        reads = eager.plan_reads(
            order.expand(batch, -1), bias, heads, kv_heads, head_dim, True, None, None, False, None
        )
        return eager.paged_attention(q, cache, reads)

    first = attended(torch.arange(length))
    assert first.dtype is torch.float64
    for seed in range(8):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(attended(order), first)
