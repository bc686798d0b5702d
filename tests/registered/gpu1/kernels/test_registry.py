"""Every operation on every case on one CUDA device, against the reference on the CPU."""

from __future__ import annotations

import os

import pytest

from kernels import check
from kernels.backend import INTERPRETER
from kernels.registry import KERNELS

pytestmark = pytest.mark.register(est_seconds=90, tier="gpu1", stage="pr")

ROWS = [(k, c) for k in KERNELS for c in k.cases]


def named(rows):
    return [pytest.param(k, c, id=f"{k}: {c}") for k, c in rows]


def test_triton_compiles_here():
    assert INTERPRETER not in os.environ


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size != "large"))
def test_the_laws_hold(kernel, case):
    check.at_once(kernel, case, "cuda")


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size == "large"))
def test_offsets_may_pass_what_an_int32_counts(kernel, case):
    check.agreement(kernel, case, "cuda")


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size == "small"))
def test_strided_arguments_are_refused_or_read_right(kernel, case):
    check.strided(kernel, case, "cuda")


@pytest.mark.parametrize(
    ("kernel", "case"), named((k, c) for k, c in ROWS if k.parts is not None and c.size != "large")
)
def test_rows_keep_their_bits(kernel, case):
    check.invariant(kernel, case, "cuda")
