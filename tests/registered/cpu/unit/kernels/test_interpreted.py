"""Triton's form of every operation, in its interpreter, on every small case."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from triton.runtime import interpreter as triton_interpreter

from specmatrix.errors import KernelError
from specmatrix.kernels import backend, check, interpreter
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.interpreter import ordered_dot
from specmatrix.kernels.matmul import triton as matmul
from specmatrix.kernels.registry import KERNELS
from specmatrix.kernels.tree_layout import tree_layout

check_interpreter()

# Triton's two forms of attention differ in the size of a split, which these cases are too small for.
ONCE = [k for k in KERNELS if k.name != "paged_attention deterministic"]
ROWS = [(k, c) for k in ONCE for c in k.cases if c.size == "small"]


def size(row):
    """The number of elements of a case."""
    return sum(argument.numel() for argument in row[1].arguments() if isinstance(argument, torch.Tensor))


def sort(row):
    """The operation and which of its arguments are tensors of more than one element: other code runs without them."""
    kernel, case = row
    given = [isinstance(argument, torch.Tensor) and argument.numel() > 1 for argument in case.arguments()]
    return kernel.name, tuple(given)


BY_SIZE = sorted(ROWS, key=size)
LARGEST = {sort(row): row for row in BY_SIZE}
SMALLEST = {sort(row): row for row in reversed(BY_SIZE)}
# Every fourth case of attention, whose parts are many.
PARTED = [(k, c) for k in KERNELS if k.parts for c in (k.cases[4::4] if "attention" in k.name else k.cases)]
PARTED = [row for row in PARTED if row[1].size == "small"]
MIDDLE = {row[0].name: row for row in PARTED[::-1] if row[1].arguments()[0].shape[0] > 1}


def named(rows, every_time):
    """The rows as pytest parameters named by operation and case; those outside `every_time` are marked nightly."""
    chosen = {(kernel.name, case.name) for kernel, case in every_time}
    marks = [() if (k.name, c.name) in chosen else pytest.mark.nightly for k, c in rows]
    return [pytest.param(k, c, id=f"{k}: {c}", marks=mark) for (k, c), mark in zip(rows, marks, strict=True)]


@pytest.fixture(autouse=True)
def in_the_interpreter():
    with interpreted():
        yield


@pytest.mark.parametrize(("kernel", "case"), named(ROWS, LARGEST.values()))
def test_the_laws_hold(kernel, case):
    check.at_once(kernel, case)


@pytest.mark.parametrize(("kernel", "case"), named(list(SMALLEST.values()), SMALLEST.values()))
def test_strided_arguments_are_refused_or_read_right(kernel, case):
    check.strided(kernel, case)


@pytest.mark.parametrize(("kernel", "case"), named(PARTED, MIDDLE.values()))
def test_rows_keep_their_bits(kernel, case):
    check.invariant(kernel, case)


STREAMED = "9 x 40 x 72 bfloat16", "18 x 72 x 33 bfloat16 transposed", "150 x 24 x 40 bfloat16"


@pytest.mark.parametrize(("kernel", "case"), [pytest.param(k, c, id=c.name) for k, c in ROWS if c.name in STREAMED])
def test_products_of_many_rows_may_be_streamed_and_keep_their_bits(kernel, case, monkeypatch):
    one = kernel.fast(*case.arguments())
    for name, given in {"MANY_ROWS": 0, "processors": lambda device: 3, "_multiply": None}.items():
        monkeypatch.setattr(matmul, name, given)
    assert torch.equal(kernel.fast(*case.arguments()), one)
    monkeypatch.setattr(matmul, "STREAMED", (matmul.MatmulTile(16, 16, 16, warps=4, stages=2),))  # several groups
    check.agreement(kernel, case)


def test_triton_is_chosen_while_interpreted(monkeypatch):
    monkeypatch.setattr(backend.triton_module(tree_layout.__module__), "tree_layout", lambda parents: "by triton")
    assert tree_layout(torch.zeros(1, 1, dtype=torch.int64)) == "by triton"


def test_the_interpreter_needs_its_flag(monkeypatch):
    monkeypatch.delenv(backend.INTERPRETER)
    with pytest.raises(KernelError, match="run on a CPU only if TRITON_INTERPRET=1"), interpreted():
        pass


def test_a_broken_interpreter_says_why_it_does_not_run(monkeypatch):
    """Once per module: it is tried when the module is imported."""

    def broken(a, b, into):
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    monkeypatch.setattr(triton_interpreter, "_patch_lang_tensor", triton_interpreter._patch_lang_tensor)
    monkeypatch.setattr(interpreter, "ordered_dot", broken)
    with pytest.raises(KernelError, match=r"^Triton \S+'s interpreter fails with numpy \S+: .*0-dimensional"):
        interpreter.prepare.__wrapped__()
    monkeypatch.setattr(interpreter, "ordered_dot", lambda a, b, into: into)
    with pytest.raises(KernelError, match=r"^Triton \S+'s interpreter gives wrong sums with numpy \S+$"):
        interpreter.prepare.__wrapped__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_tile_product_of_the_interpreter_has_one_order(dtype):
    """Whatever numpy's BLAS does."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 17, 64)).astype(dtype), rng.standard_normal((2, 64, 40)).astype(dtype)
    into = rng.standard_normal((2, 17, 40)).astype(np.float32)
    whole = ordered_dot(a, b, into)
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b.astype(np.float64) + into, rtol=1e-4, atol=1e-4)
    for rows in range(1, 18):
        assert np.array_equal(ordered_dot(a[:, :rows], b, into[:, :rows]), whole[:, :rows])
        assert np.array_equal(ordered_dot(a, b[..., :rows], into[..., :rows]), whole[..., :rows])


@pytest.mark.parametrize("op", ["matmul", "paged_attention deterministic"])
def test_programs_by_part_and_one_program_for_all_parts_give_the_same_bits(op, monkeypatch):
    (kernel,) = [k for k in KERNELS if k.name == op]
    module = import_module(f"specmatrix.kernels.{op.split()[0]}.triton")
    for case in kernel.cases:
        if case.size == "small" and ("two splits" in case.name or "1100" in case.name):
            split = kernel.fast(*case.arguments())
            with monkeypatch.context() as patch:
                patch.setattr(module, "FULL", 0)
                assert torch.equal(kernel.fast(*case.arguments()), split)
