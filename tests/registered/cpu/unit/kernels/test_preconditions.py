"""What the public operations refuse, and how the message begins."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from specmatrix.errors import KernelError
from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.compact_kv import compact_kv
from specmatrix.kernels.expand_topk import expand_topk
from specmatrix.kernels.fused_linear import MAX_ROWS, Fusion, NextNorm, fused_linear
from specmatrix.kernels.gather_rows import gather, scatter
from specmatrix.kernels.matmul import matmul
from specmatrix.kernels.paged_attention import paged_attention, plan_reads
from specmatrix.kernels.rms_norm import rms_norm
from specmatrix.kernels.rotary import rotary
from specmatrix.kernels.sample import draw, uniform
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.silu_mul import silu_mul
from specmatrix.kernels.store_kv import store_kv
from specmatrix.kernels.tree_layout import tree_layout

ROWS, KV = torch.zeros(5, 4), torch.ones(2, 4)
SLOTS = torch.tensor([1, 3])
TREE = torch.tensor([[-1, 0, 0]])
IDS, ONE = torch.tensor([[5, 6, 7]]), torch.ones(1)
TURN = torch.ones(2, 2, dtype=torch.complex64)
NONE = torch.zeros(1, dtype=torch.int64)
SQUARE, MANY = torch.ones(4, 4), torch.ones(MAX_ROWS + 1, 4)
COINS = torch.zeros(1, 2, dtype=torch.float64)


def plan(**changes: object):
    given = {"read_slots": torch.zeros(2, 6, dtype=torch.int64), "bias": torch.zeros(2, 1, 1, 6)}
    return plan_reads(**given | {"heads": 4, "kv_heads": 2, "head_dim": 8} | changes)


def join(weight: torch.Tensor = SQUARE, **around: object):
    return fused_linear(KV, weight, torch.zeros(2, 4), Fusion(**around))


REFUSED = [
    (partial(store_kv, ROWS, SLOTS, KV[:, :3]), r"store_kv: kv has shape \[2, 3\], must be \[2, 4\]"),
    (partial(store_kv, ROWS, SLOTS, KV[:1]), r"store_kv: kv has shape \[1, 4\], must be \[2, 4\]"),
    (partial(compact_kv, ROWS[None], SLOTS, SLOTS[:1]), r"compact_kv: source has shape \[2\]"),
    (partial(plan, bias=torch.zeros(2, 1, 1, 5)), r"paged_attention: bias has shape \[2, 1, 1, 5\]"),
    (partial(plan, value_dim=9), "paged_attention: value_dim must be between 1 and head_dim 8"),
    (partial(plan, heads=3), "paged_attention: heads must be a multiple of kv_heads 2, got 3"),
    (lambda: paged_attention(torch.zeros(2, 2, 4, 8), torch.zeros(12, 8), plan()), r"paged_attention: q has shape"),
    (partial(tree_layout, TREE[0]), r"tree_layout: parents has shape \[3\], must be \[B, N >="),
    (partial(accept_path, IDS, TREE, IDS[:, :2], 1), r"accept_path: emit has shape \[1, 2\]"),
    (partial(accept_path, IDS, TREE, IDS, 3), "accept_path: depth must be between 0 and 2, got 3"),
    (partial(argmax, KV), r"argmax: logits has shape \[2, 4\], must be \[B, W, >= 1\]"),
    (partial(expand_topk, torch.ones(1, 3), torch.ones(1, 2, 2)), r"expand_topk: scores has shape \[1, 3\], must be"),
    (partial(expand_topk, torch.ones(1, 0), torch.ones(1, 0, 2)), r"expand_topk: probs has shape \[1, 0, 2\], must"),
    (partial(select_tree, torch.ones(1, 6), torch.zeros(1, 2, dtype=torch.int64), 3, 2), r"select_tree: parent_list"),
    (partial(select_tree, torch.ones(1, 2), torch.zeros(1, 3, dtype=torch.int64), 4, 2), "select_tree: nodes must be"),
    (partial(uniform, NONE, NONE), r"uniform: position has shape \[1\], must be \[B, W\]"),
    (partial(uniform, SLOTS, NONE[None]), r"uniform: seed has shape \[2\], must be \[1\]"),
    (partial(uniform, NONE.int(), NONE[None]), "uniform: seed is int32, must be int64"),
    (partial(draw, torch.zeros(1, 3, 5), COINS, ONE, NONE, ONE), r"draw: coins has shape \[1, 2\], must"),
    (partial(matmul, ONE, KV), r"matmul: x has shape \[1\], must be \[M, K\]"),
    (partial(matmul, KV, KV), r"matmul: weight has shape \[2, 4\], must be \[4, N\]"),
    (partial(matmul, KV, KV.t(), torch.zeros(2, 3)), r"matmul: out has shape \[2, 3\], must be \[2, 2\]"),
    (partial(matmul, KV, KV.t(), add=True), "matmul: add=True requires out"),
    (partial(fused_linear, MANY, SQUARE, MANY), r"fused_linear: x has shape \[129, 4\], must be \[<= 128, 4\]"),
    (partial(fused_linear, KV, SQUARE, torch.ones(1, 4)), r"fused_linear: out has shape \[1, 4\], must be"),
    (partial(join, torch.ones(4, 3)), r"fused_linear: weight has shape \[4, 3\], must be \[4"),
    (partial(join, gated=True), r"fused_linear: weight has shape \[4, 4\], must be \[4, 8\]"),
    (partial(join, sums=ONE), r"fused_linear: sums has shape \[1\], must be \[2, parts\]"),
    (partial(join, rotation=TURN, heads=2), r"fused_linear: rotation has shape \[2, 2\]"),
    (partial(join, next_norm=NextNorm(torch.ones(4), KV[:1], torch.zeros(2, 1))), r"fused_linear: scaled has shape"),
    (partial(join, next_norm=NextNorm(torch.ones(4), KV, torch.zeros(2, 2))), r"fused_linear: partial_sumsq has"),
    (partial(join, add=True, rotation=TURN, heads=1), "fused_linear: at most one of rotation, add and gated may be"),
    (partial(rms_norm, ONE, KV, 0.1), r"rms_norm: x has shape \[1\], must be \[M, 8\]"),
    (partial(rms_norm, KV, ONE, 0.1), r"rms_norm: weight has shape \[1\], must be \[G, width\]"),
    (partial(rms_norm, KV, ROWS[:1], 0.1, out=KV[:1]), r"rms_norm: out has shape \[1, 4\], must be"),
    (partial(rms_norm, KV, ROWS[:, :3], 0.1), r"rms_norm: x has shape \[2, 4\], must be \[M, 15\]"),
    (partial(rotary, KV, TURN, 2), r"rotary: rows has shape \[2, 4\], must be \[M, >= 8\]"),
    (partial(rotary, KV, TURN[:1], 1), r"rotary: rotation has shape \[1, 2\], must be \[2, d / 2\]"),
    (partial(silu_mul, KV[:, :3]), r"silu_mul: gate_up has shape \[2, 3\], must be \[M, 2 \* inner\]"),
    (partial(gather, ROWS, SLOTS[:, None]), r"gather: rows has shape \[2, 1\], must be \[B\]"),
    (partial(scatter, ROWS, SLOTS, KV[:1]), r"scatter: values has shape \[1, 4\], must be \[2, 4\]"),
    (
        partial(draw, torch.zeros(1, 2, 5), COINS, ONE, torch.zeros(2, dtype=torch.int64), ONE),
        r"draw: top_k has shape \[2\], must be \[1\]",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_refusals(call, sentence):
    with pytest.raises(KernelError, match=sentence):
        call()
