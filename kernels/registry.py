"""Every operation with its reference and its cases: KERNELS run on every backend, CPU_KERNELS on a CPU only."""

from __future__ import annotations

from functools import partial
from typing import Final

from torch import Tensor

from specmatrix.kernels import batch_invariance, error_bounds, preconditions
from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.accept_path import cases as accept_path_cases
from specmatrix.kernels.accept_path import reference as accept_path_reference
from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.argmax import cases as argmax_cases
from specmatrix.kernels.argmax import reference as argmax_reference
from specmatrix.kernels.case import Kernel
from specmatrix.kernels.compact_kv import cases as compact_kv_cases
from specmatrix.kernels.compact_kv import compact_kv
from specmatrix.kernels.compact_kv import reference as compact_kv_reference
from specmatrix.kernels.decoder_layer import cases as decoder_layer_cases
from specmatrix.kernels.decoder_layer import decoder_layer
from specmatrix.kernels.decoder_layer import reference as decoder_layer_reference
from specmatrix.kernels.expand_topk import cases as expand_topk_cases
from specmatrix.kernels.expand_topk import expand_topk
from specmatrix.kernels.expand_topk import reference as expand_topk_reference
from specmatrix.kernels.fused_linear import Fusion, NextNorm, fused_linear
from specmatrix.kernels.fused_linear import cases as fused_linear_cases
from specmatrix.kernels.fused_linear import reference as fused_linear_reference
from specmatrix.kernels.gather_rows import cases as relay_cases
from specmatrix.kernels.gather_rows import gather, scatter
from specmatrix.kernels.gather_rows import reference as relay_reference
from specmatrix.kernels.matmul import cases as matmul_cases
from specmatrix.kernels.matmul import matmul
from specmatrix.kernels.matmul import reference as matmul_reference
from specmatrix.kernels.paged_attention import cases as paged_attention_cases
from specmatrix.kernels.paged_attention import paged_attention, plan_reads
from specmatrix.kernels.paged_attention import reference as paged_attention_reference
from specmatrix.kernels.rms_norm import cases as rms_norm_cases
from specmatrix.kernels.rms_norm import reference as rms_norm_reference
from specmatrix.kernels.rms_norm import rms_norm
from specmatrix.kernels.rotary import cases as rotary_cases
from specmatrix.kernels.rotary import reference as rotary_reference
from specmatrix.kernels.rotary import rotary
from specmatrix.kernels.sample import cases as sample_cases
from specmatrix.kernels.sample import draw, uniform
from specmatrix.kernels.sample import reference as sample_reference
from specmatrix.kernels.select_tree import cases as select_tree_cases
from specmatrix.kernels.select_tree import reference as select_tree_reference
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.silu_mul import cases as silu_mul_cases
from specmatrix.kernels.silu_mul import reference as silu_mul_reference
from specmatrix.kernels.silu_mul import silu_mul
from specmatrix.kernels.store_kv import cases as store_kv_cases
from specmatrix.kernels.store_kv import reference as store_kv_reference
from specmatrix.kernels.store_kv import store_kv
from specmatrix.kernels.tree_layout import cases as tree_layout_cases
from specmatrix.kernels.tree_layout import reference as tree_layout_reference
from specmatrix.kernels.tree_layout import tree_layout


def _attend(
    q: Tensor,
    cache: Tensor,
    read_slots: Tensor,
    bias: Tensor,
    kv_heads: int,
    value_dim: int | None = None,
    scale: float | None = None,
    sparse: bool = False,
    start: Tensor | None = None,
    *,
    deterministic: bool,
) -> Tensor:
    """plan_reads and paged_attention with the reference's arguments."""
    preconditions.contiguous("paged_attention", cache=cache)
    heads, head_dim = q.shape[2:]
    more = (value_dim, scale, sparse, start)
    reads = plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic, True, *more)
    return paged_attention(q, cache.view(-1, head_dim), reads)


def _several(x: Tensor, weight: Tensor) -> Tensor:
    """[H * M, N], so that each result row is a row of one product."""
    return matmul(x, weight, checked=True).flatten(0, 1)


def _joined(*arguments: Tensor) -> Tensor:
    """fused_linear with the reference's arguments, which may end with those of a following norm."""
    next_norm = NextNorm(*arguments[9:12]) if len(arguments) == 12 else None
    return fused_linear(*arguments[:3], Fusion(*arguments[3:9], next_norm), checked=True)


def _chained(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    scale: Tensor,
    scaled: Tensor,
    partial_sumsq: Tensor,
    behind: Tensor,
    last: Tensor,
    eps: float,
) -> Tensor:
    """Two launches, the second of which reads every output of the first."""
    preconditions.contiguous("fused_linear", behind=behind, last=last)
    fused_linear(x, weight, out, Fusion(next_norm=NextNorm(scale, scaled, partial_sumsq)), checked=True)
    return fused_linear(scaled, behind, last, Fusion(partial_sumsq, eps), checked=True)


_MATMUL = partial(
    Kernel,
    fast=partial(matmul, checked=True),
    reference=matmul_reference.matmul,
    bound=error_bounds.product,
    why="float32 sums of K products, rounded once at the store",
)
_PROJECTION = partial(
    Kernel,
    fast=_joined,
    reference=fused_linear_reference.fused_linear,
    bound=error_bounds.fused_linear,
    why="float32 sums of K products, rounded after each fused operation",
)
_NORM = partial(
    Kernel,
    fast=partial(rms_norm, checked=True),
    reference=rms_norm_reference.rms_norm,
    parts=batch_invariance.of_normed_rows,
    bound=error_bounds.scaling,
    why="the root of a float32 sum of squares, rounded once at the store",
)
_ATTENTION = partial(
    Kernel,
    reference=paged_attention_reference.paged_attention,
    cases=paged_attention_cases.CASES,
    bound=error_bounds.attention,
    why="scores rounded relative to their terms, a sum of T values, rounded once at the store",
)

KERNELS: Final = (
    Kernel("store_kv", partial(store_kv, checked=True), store_kv_reference.store_kv, store_kv_cases.CASES, writes=(0,)),
    Kernel(
        "compact_kv",
        partial(compact_kv, checked=True),
        compact_kv_reference.compact_kv,
        compact_kv_cases.CASES,
        writes=(0,),
    ),
    _ATTENTION(name="paged_attention", fast=partial(_attend, deterministic=False)),
    _ATTENTION(
        name="paged_attention deterministic",
        fast=partial(_attend, deterministic=True),
        parts=batch_invariance.of_queries,
        bound=partial(error_bounds.attention, by_row=True),
    ),
    Kernel(
        "tree_layout",
        partial(tree_layout, checked=True),
        tree_layout_reference.tree_layout,
        tree_layout_cases.CASES,
    ),
    Kernel(
        "accept_path",
        partial(accept_path, checked=True),
        accept_path_reference.accept_path,
        accept_path_cases.CASES,
    ),
    Kernel(
        "expand_topk",
        partial(expand_topk, checked=True),
        expand_topk_reference.expand_topk,
        expand_topk_cases.CASES,
        bound=lambda *_: 0.0,
        why="one float32 product per score in both implementations",
    ),
    Kernel(
        "select_tree",
        partial(select_tree, checked=True),
        select_tree_reference.select_tree,
        select_tree_cases.CASES,
    ),
    _MATMUL(name="matmul", cases=matmul_cases.PLAIN_CASES, parts=batch_invariance.of_rows),
    _MATMUL(
        name="matmul of several",
        fast=_several,
        reference=matmul_reference.several,
        cases=matmul_cases.SEVERAL_CASES,
        parts=batch_invariance.of_batched_rows,
    ),
    _MATMUL(name="matmul added", cases=matmul_cases.ADDED_CASES, parts=batch_invariance.of_added_rows, writes=(2,)),
    _NORM(name="rms_norm", cases=rms_norm_cases.PLAIN_CASES),
    _NORM(name="rms_norm into a buffer", cases=rms_norm_cases.INTO_CASES, writes=(3,)),
    Kernel(
        "rotary",
        partial(rotary, checked=True),
        rotary_reference.rotary,
        rotary_cases.CASES,
        writes=(0,),
        bound=error_bounds.rounding,
        why="two float32 products and a sum, rounded once at the store",
        parts=batch_invariance.of_rotated_rows,
    ),
    Kernel(
        "silu_mul",
        silu_mul,
        silu_mul_reference.silu_mul,
        silu_mul_cases.CASES,
        bound=error_bounds.rounding,
        why="float32 arithmetic, rounded once at the store",
        parts=batch_invariance.of_rows,
    ),
    _PROJECTION(name="fused_linear", cases=fused_linear_cases.CASES, writes=(2,)),
    _PROJECTION(name="fused_linear before a norm", cases=fused_linear_cases.NEXT_NORM_CASES, writes=(2, 10, 11)),
    Kernel(
        "fused_linear after another",
        _chained,
        fused_linear_reference.chained,
        fused_linear_cases.CHAINED_CASES,
        writes=(2, 4, 5, 7),
        bound=error_bounds.chained,
        why="a projection's own bound plus the propagated error of the first projection",
    ),
    Kernel("gather", partial(gather, checked=True), relay_reference.gather, relay_cases.GATHER_CASES),
    Kernel("scatter", partial(scatter, checked=True), relay_reference.scatter, relay_cases.SCATTER_CASES, writes=(0,)),
    Kernel("uniform", uniform, sample_reference.uniform, sample_cases.UNIFORM_CASES, why="identical 53 bits"),
    Kernel("argmax", argmax, argmax_reference.argmax, argmax_cases.CASES, why="token ids"),
    Kernel("draw", draw, sample_reference.draw, sample_cases.DRAW_CASES, why="token ids"),
)

CPU_KERNELS: Final = (
    Kernel(
        "decoder_layer",
        decoder_layer,
        decoder_layer_reference.decoder_layer,
        decoder_layer_cases.CASES,
        writes=(0, 11),
        bound=error_bounds.decoder_layer,
        why="chained float32 sums",
    ),
)
