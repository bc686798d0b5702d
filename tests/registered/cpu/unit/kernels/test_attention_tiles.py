"""The tiles of attention, and its sums where bits may not depend on the step."""

from __future__ import annotations

import pytest
import torch

from specmatrix.kernels import check
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.paged_attention import paged_attention, plan_reads, triton
from specmatrix.kernels.paged_attention.triton import FULL, SHORT, fit, shape, split_count
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
def test_a_quick_step_has_tiles_that_fit_and_no_fewer_programs_than_run_at_once(length, pairs, rows, d):
    tile, count, keys = fit(shape(d, d, 2, 4), rows, length, pairs, SHARED_MEMORY // 2, True)
    programs = pairs * -(-rows // tile.rows)
    assert 1 <= count <= length // SHORT and keys in (0, SHORT)
    # One split more would not run at once, unless splits are as short as they may be.
    assert count == length // SHORT or programs * (count + 1) > FULL
    assert tile.rows >= min(rows, 64) and tile.stages >= 2
    assert tile.stages * tile.keys * 2 * tile.d1 * 2 <= max(SHARED_MEMORY, 2 * 64 * 4 * d)


COUNTS = [(8, 32768, 33), (96, 1152, 2), (96, 8192, 8), (128, 1152, 2), (256, 1152, 1), (320, 4096, 4), (1024, 1152, 1)]


@pytest.mark.parametrize(("programs", "length", "count"), COUNTS)
def test_splits_leave_few_of_the_programs_that_run_at_once_idle(programs, length, count):
    assert split_count(programs, length) == count


ATTENTION = next(k for k in KERNELS if k.name == "paged_attention")


SEVERAL = [c for c in ATTENTION.cases if c.name.startswith(("[300", "[127", "[128", "[700, 255, 511]+1"))]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_any_number_of_even_splits_gives_the_same_attention(case, count, monkeypatch):
    monkeypatch.setattr(triton, "split_count", lambda programs, length: count)
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
