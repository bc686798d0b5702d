"""Attention of many queries, in tiles that a decode step does not use."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels.paged_attention import paged_attention, plan_reads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("some", [slice(0, 1), slice(700, 708), slice(1499, 1500)], ids=str)
def test_a_query_has_the_bits_in_a_decode_step_that_it_has_in_a_prefill(some, dtype):
    """Of 1,500 queries behind 500 tokens."""
    g = torch.Generator("cuda").manual_seed(0)
    q, cache = (torch.randn(size, 128, generator=g, device="cuda").to(dtype) for size in (1500 * 32, 2001 * 2 * 8))
    slots = torch.randperm(2000, generator=g, device="cuda")[None] + 1

    def attended(some, deterministic):
        at = 500 + torch.arange(1500, device="cuda")[some]
        bias = torch.zeros(1, 1, len(at), 2000, device="cuda", dtype=dtype)
        bias.masked_fill_(torch.arange(2000, device="cuda") > at[:, None], float("-inf"))
        reads = plan_reads(slots, bias, 32, 8, 128, deterministic, start=at[:1].clone(), causal=True)
        return paged_attention(q.view(1, 1500, 32, 128)[:, some], cache, reads)

    whole = attended(slice(None), True)
    assert torch.equal(attended(some, True), whole[some])
    assert (attended(slice(None), False) - whole).abs().max() <= 2**-6
