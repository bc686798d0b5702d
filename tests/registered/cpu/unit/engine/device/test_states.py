"""Recurrent states: which steps may take the chunked form of the delta rule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specmatrix.engine.device import kv_groups
from specmatrix.engine.device.kv_groups import GroupSlots, StateGroup
from specmatrix.engine.device.pool import StateLayout, StatePool
from specmatrix.kernels import gated_delta as package
from specmatrix.kernels.registry import KERNELS

SLOTS = torch.ones(1, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("pages", "deterministic", "free"), [(None, False, True), (None, True, False), (SLOTS, False, False)]
)
def test_only_chunks_of_fast_engines_leave_the_order_of_sums_free(pages, deterministic, free, monkeypatch):
    pool = StatePool(StateLayout(1, 4, 2, 1, 1, 2), 3, torch.float32, "cpu")
    group = StateGroup(pool, SimpleNamespace(), SimpleNamespace(), slots=1, width=1, interval=8)
    monkeypatch.setattr(kv_groups, "gated_delta", lambda *given: given[-1])
    states = group.states(GroupSlots(SLOTS, SLOTS, pages=pages), None, deterministic)
    assert states(0, SLOTS, SLOTS, SLOTS) is free


def test_trees_keep_the_recurrent_form(monkeypatch):
    (kernel,) = [kernel for kernel in KERNELS if kernel.name == "gated_delta"]
    (*arguments, _) = next(one.arguments() for one in kernel.cases if one.name == "chunks of any order")
    seen = []
    triton = SimpleNamespace(gated_delta=lambda *given: seen.append(given[-1]))
    monkeypatch.setattr(package, "on_triton", lambda _: True)
    monkeypatch.setattr(package, "triton_module", lambda _: triton)
    for parents in (None, arguments[9]):
        package.gated_delta(*arguments[:10], parents, True)
    assert seen == [True, False]
