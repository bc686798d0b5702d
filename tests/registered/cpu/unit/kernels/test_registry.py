"""Every operation keeps the laws of kernels on every small case and its definition on larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import specmatrix.kernels
from specmatrix.kernels import check
from specmatrix.kernels.registry import CPU_KERNELS, KERNELS

EVERY = (*KERNELS, *CPU_KERNELS)
SMALL = [pytest.param(k, c, id=f"{k}: {c}") for k in EVERY for c in k.cases if c.size == "small"]
OTHERS = [pytest.param(k, c, id=f"{k}: {c}") for k in EVERY for c in k.cases if c.size == "medium"]


@pytest.mark.parametrize(("kernel", "case"), SMALL)
def test_the_laws_hold(kernel, case):
    check.at_once(kernel, case)


@pytest.mark.nightly
@pytest.mark.parametrize(("kernel", "case"), OTHERS)
def test_agrees_with_reference(kernel, case):
    check.agreement(kernel, case)


def test_every_folder_has_its_files_and_a_row():
    folders = {p.parent.name for p in Path(specmatrix.kernels.__file__).parent.glob("*/__init__.py")}
    backends = {k.reference.__module__.split(".")[-2]: {"triton.py"} for k in KERNELS}
    backends |= {"reject_drafts": set(), "verify_lengths": set()}  # torch on every device
    backends |= {k.reference.__module__.split(".")[-2]: {"compiled.py"} for k in CPU_KERNELS}
    backends["gated_delta"] = {"triton.py", "compiled.py", "chunked.py"}
    assert folders == set(backends)
    for folder, own in backends.items():
        files = {p.name for p in (Path(specmatrix.kernels.__file__).parent / folder).glob("*.py")}
        # A table of tiles stands beside the kernel that it is for.
        assert files - {"tiles.py"} == {"__init__.py", "reference.py", "cases.py"} | own, folder


def test_every_operation_has_empty_and_single_batches():
    for kernel in EVERY:
        # The operations on rows of a buffer have them behind it.
        small = [c.arguments()[:2] for c in kernel.cases if c.size == "small"]
        sizes = {argument.shape[0] for pair in small for argument in pair if isinstance(argument, torch.Tensor)}
        assert {0, 1} <= sizes, kernel
