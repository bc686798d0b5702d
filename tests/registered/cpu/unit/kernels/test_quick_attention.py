"""The sums of attention where bits may not depend on the step."""

from __future__ import annotations

import torch

from specmatrix.kernels.paged_attention import paged_attention, plan_reads


def test_deterministic_sums_are_exact_in_float64_whatever_their_order():
    """Outputs kept in float64 show the last bit of each sum, which a float32 output would round away."""
    g = torch.Generator().manual_seed(3)
    batch, heads, kv_heads, head_dim, length = 2, 4, 2, 16, 300
    q = torch.randn(batch, 1, heads, head_dim, generator=g, dtype=torch.float64)
    cache = torch.randn(length * 2 * kv_heads, head_dim, generator=g, dtype=torch.float64)
    bias = torch.zeros(batch, 1, 1, length, dtype=torch.float64)

    def attended(order: torch.Tensor) -> torch.Tensor:
        reads = plan_reads(order.expand(batch, -1), bias, heads, kv_heads, head_dim)
        return paged_attention(q, cache, reads)

    first = attended(torch.arange(length))
    assert first.dtype is torch.float64
    for seed in range(8):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(attended(order), first)
