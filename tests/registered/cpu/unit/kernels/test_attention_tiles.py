"""The tiles of attention, and its sums where bits may not depend on the step."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels import check
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.paged_attention import paged_attention, plan_reads, triton
from specmatrix.kernels.paged_attention.triton import MAX_PROGRAMS, SHORT, WHOLE, fit, shape
from specmatrix.kernels.pdl import SHARED_MEMORY
from specmatrix.kernels.registry import KERNELS

check_interpreter()


def test_deterministic_sums_are_exact_in_float64_whatever_their_order():
    """Outputs kept in float64 show the last bit of each sum, which a float32 output would round away."""
    g, (batch, heads, kv_heads, head_dim, length) = torch.Generator().manual_seed(3), (2, 4, 2, 16, 300)
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


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("rows", [4, 24, 128, 4096])
@pytest.mark.parametrize("pairs", [1, 8, 64, 256, 512])
@pytest.mark.parametrize("length", [128, 1152, 8320, 131072])
def test_a_quick_step_has_as_many_programs_as_run_at_once_and_tiles_that_fit(length, pairs, rows, d):
    tile, split = fit(shape(d, d, 2, 4), rows, length, pairs, SHARED_MEMORY // 2, False)
    pairs *= -(-rows // tile.rows)
    assert -(-length // split) * pairs <= max(MAX_PROGRAMS, pairs) and split % tile.keys == 0
    # Half as long splits would be too many.
    assert split == SHORT or (-(-length // (split // 2)) if split < WHOLE else 1) * pairs > MAX_PROGRAMS
    assert tile.rows >= min(rows, 64) and tile.stages >= 2
    assert tile.stages * tile.keys * 2 * tile.d1 * 2 <= max(SHARED_MEMORY, 2 * 64 * 4 * d)


ATTENTION = next(k for k in KERNELS if k.name == "paged_attention")


@pytest.mark.parametrize("case", [c for c in ATTENTION.cases if "+20 " in c.name or "+90 " in c.name], ids=str)
def test_in_a_prefill_of_more_programs_each_takes_all_keys_that_its_queries_see(case, monkeypatch):
    monkeypatch.setattr(triton, "MAX_PROGRAMS", 0)
    with interpreted():
        check.agreement(ATTENTION, case)


DETERMINISTIC = next(k for k in KERNELS if k.name == "paged_attention deterministic")
LONG = [c for c in DETERMINISTIC.cases if c.name.startswith(("[300, 9", "[600, 20", "[130, 0"))]


@pytest.mark.parametrize("case", LONG, ids=str)
def test_one_program_over_all_splits_gives_the_bits_of_one_for_each(case, monkeypatch):
    monkeypatch.setattr(triton, "SPLIT", 128)
    with interpreted():
        spread = DETERMINISTIC.fast(*case.arguments())
        monkeypatch.setattr(triton, "FULL", 0)
        assert torch.equal(DETERMINISTIC.fast(*case.arguments()), spread)
