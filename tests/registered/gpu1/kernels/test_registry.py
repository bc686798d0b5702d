"""Every operation on every case on one CUDA device, against the reference on the CPU."""

from __future__ import annotations

import os
from importlib import import_module

import pytest
import torch

from specmatrix.kernels import check
from specmatrix.kernels.backend import INTERPRETER
from specmatrix.kernels.registry import KERNELS

ROWS = [(k, c) for k in KERNELS for c in k.cases]


def named(rows):
    return [pytest.param(k, c, id=f"{k}: {c}") for k, c in rows]


def test_triton_compiles_here():
    assert INTERPRETER not in os.environ


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size != "large"))
def test_the_laws_hold(kernel, case):
    check.at_once(kernel, case, "cuda")


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size == "large"))
def test_offsets_may_exceed_int32(kernel, case):
    check.agreement(kernel, case, "cuda")


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size == "small"))
def test_strided_arguments_are_refused_or_read_right(kernel, case):
    check.strided(kernel, case, "cuda")


@pytest.mark.parametrize(("kernel", "case"), named((k, c) for k, c in ROWS if c.size == "small"))
def test_what_the_preceding_kernel_writes_late_is_waited_for(kernel, case):
    check.late(kernel, case)


@pytest.mark.parametrize(
    ("kernel", "case"), named((k, c) for k, c in ROWS if k.parts is not None and c.size != "large")
)
def test_rows_keep_their_bits(kernel, case):
    check.invariant(kernel, case, "cuda")


@pytest.mark.parametrize("op", ["matmul", "matmul of several", "paged_attention deterministic"])
def test_programs_by_part_and_one_program_for_all_parts_give_the_same_bits(op, monkeypatch):
    (kernel,) = [k for k in KERNELS if k.name == op]
    module = import_module(f"specmatrix.kernels.{op.split()[0]}.triton")
    for case in kernel.cases:
        if case.size != "large":
            one = kernel.fast(*case.arguments("cuda"))
            with monkeypatch.context() as patch:
                patch.setattr(module, "FULL", 0)
                other = kernel.fast(*case.arguments("cuda"))
            assert torch.equal(one, other), case
