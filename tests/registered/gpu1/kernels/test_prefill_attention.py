"""Attention of many queries, in tiles that a decode step does not use."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels.paged_attention import paged_attention, plan_reads

HEADS, KV_HEADS, DIM = 32, 8, 128


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def step(request):
    """Attention of `some` of 1,500 queries behind 500 tokens."""
    g = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(1, 1500, HEADS, DIM, generator=g, device="cuda").to(request.param)
    cache = torch.randn(2001, 2, KV_HEADS, DIM, generator=g, device="cuda").to(request.param)
    slots = torch.randperm(2000, generator=g, device="cuda")[None] + 1

    def attended(some, deterministic):
        at = 500 + torch.arange(1500, device="cuda")[some]
        hidden = torch.arange(2000, device="cuda") > at[:, None]
        bias = torch.zeros(1, 1, *hidden.shape, device="cuda", dtype=request.param).masked_fill_(hidden, float("-inf"))
        how = {"deterministic": deterministic, "start": at[:1].clone(), "causal": True}
        return paged_attention(q[:, some], cache.view(-1, DIM), plan_reads(slots, bias, HEADS, KV_HEADS, DIM, **how))

    return attended


@pytest.mark.parametrize("some", [slice(0, 1), slice(700, 708), slice(1499, 1500)], ids=str)
def test_a_query_has_the_bits_in_a_decode_step_that_it_has_in_a_prefill(step, some):
    whole = step(slice(None), True)
    assert torch.equal(step(some, True), whole[some])
    assert (step(slice(None), False) - whole).abs().max() <= 2**-6
