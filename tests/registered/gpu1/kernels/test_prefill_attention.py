"""Attention of many queries, in tiles that a decode step does not use."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from specmatrix.kernels.paged_attention import paged_attention, plan_reads

HEADS, KV_HEADS, DIM, SHARE = 32, 8, 128, 4


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def step(request):
    """Queries, keys and values of 1,500 tokens behind 500, and the bits of attention of `some` of the queries."""
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

    return q, cache[slots[0]], attended


def test_a_prefill_is_as_near_to_float32_as_torch_is(step):
    q, cache, attended = step
    keys, values = (part.repeat_interleave(SHARE, 1).transpose(0, 1)[None] for part in cache.unbind(1))
    hidden = torch.ones(1500, 2000, dtype=torch.bool, device="cuda").tril(500)
    parts = q.transpose(1, 2), keys, values
    exact = scaled_dot_product_attention(*(part.float() for part in parts), attn_mask=hidden)
    theirs = (scaled_dot_product_attention(*parts, attn_mask=hidden).float() - exact).abs()
    for deterministic in (False, True):
        mine = attended(slice(None), deterministic).view(1500, HEADS, DIM).transpose(0, 1)[None].float()
        off = (mine - exact).abs()
        assert off.max() < 1.5 * theirs.max() and off.mean() < 1.5 * theirs.mean()


@pytest.mark.parametrize("some", [slice(0, 1), slice(700, 708), slice(1499, 1500)], ids=str)
def test_a_query_has_the_bits_in_a_decode_step_that_it_has_in_a_prefill(step, some):
    *_, attended = step
    assert torch.equal(attended(some, True), attended(slice(None), True)[some])
