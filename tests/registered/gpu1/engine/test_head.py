"""Logits of a head on a GPU are float32 sums without intermediate rounding, except in deterministic mode."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.models.causal_lm import head_logits
from specmatrix.engine.models.linear_ops import linear_ops


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_are_sums_of_products(dtype, deterministic):
    generator = torch.Generator("cuda").manual_seed(3)
    hidden = torch.randn(2, 3, 256, device="cuda", generator=generator).to(dtype)
    head = (torch.randn(256, 1037, device="cuda", generator=generator) * 0.05).to(dtype)
    logits = head_logits(hidden, head, linear_ops(deterministic))
    assert logits.dtype is torch.float32 and logits.shape == (2, 3, 1037)
    wanted = hidden.double() @ head.double()
    half = dtype is not torch.float32
    # Ordered products are rounded to the operands' form once.
    bound = 1e-6 if not half else torch.finfo(dtype).eps if deterministic else 1e-4
    assert float((logits - wanted).norm() / wanted.norm()) < bound
