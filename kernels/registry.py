"""Every operation with its reference and its cases: KERNELS run on every backend, CPU_KERNELS on a CPU only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from specmatrix.kernels import batch_invariance, error_bounds, preconditions
from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.case import Kernel
from specmatrix.kernels.compact_kv import compact_kv
from specmatrix.kernels.decoder_layer import decoder_layer
from specmatrix.kernels.expand_topk import expand_topk
from specmatrix.kernels.fused_linear import Fusion, NextNorm, fused_linear
from specmatrix.kernels.gated_delta import gated_delta
from specmatrix.kernels.gather_rows import gather, scatter
from specmatrix.kernels.matmul import matmul
from specmatrix.kernels.paged_attention import paged_attention, plan_reads
from specmatrix.kernels.rank_sum import BYTES, PeerMemory, rank_sum
from specmatrix.kernels.reject_drafts import reject_drafts
from specmatrix.kernels.rms_norm import rms_norm
from specmatrix.kernels.rotary import rotary
from specmatrix.kernels.sample import draw, probabilities, uniform
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.silu_mul import silu_mul
from specmatrix.kernels.store_kv import store_kv
from specmatrix.kernels.tree_layout import tree_layout
from specmatrix.kernels.verify_lengths import verify_lengths


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
    causal: bool = False,
    *,
    deterministic: bool,
) -> Tensor:
    """plan_reads and paged_attention with the reference's arguments."""
    preconditions.contiguous("paged_attention", cache=cache)
    heads, head_dim = q.shape[2:]
    more = (value_dim, scale, sparse, start, causal)
    reads = plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic, *more)
    return paged_attention(q, cache.view(-1, head_dim), reads)


def _several(x: Tensor, weight: Tensor) -> Tensor:
    """[H * M, N], so that each result row is a row of one product."""
    return matmul(x, weight).flatten(0, 1)


def _joined(*arguments: Tensor) -> Tensor:
    """fused_linear with the reference's arguments, which may end with those of a following norm."""
    next_norm = NextNorm(*arguments[9:12]) if len(arguments) == 12 else None
    return fused_linear(*arguments[:3], Fusion(*arguments[3:9], next_norm))


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
    fused_linear(x, weight, out, Fusion(next_norm=NextNorm(scale, scaled, partial_sumsq)))
    return fused_linear(scaled, behind, last, Fusion(partial_sumsq, eps))


def _summed(parts: Tensor, rank: int, out: Tensor, add: bool) -> Tensor:
    """rank_sum on one device: the other ranks have stored their parts before, for the sum of the number `rank` + 1."""
    preconditions.contiguous("rank_sum", parts=parts)
    peers = PeerMemory(
        rank, [torch.zeros(BYTES, dtype=torch.uint8, device=parts.device) for _ in range(parts.shape[1])]
    )
    peers.rounds.fill_(rank)
    for other, part in enumerate(parts.unbind(1)):
        if other != rank:
            peers.half(other, rank + 1, part).copy_(part)
            peers.flags(rank)[:, other] = rank + 1
    return rank_sum(parts[:, rank].contiguous(), peers, out, add)


def _kernel(
    operation: Callable[..., Any],
    name: str = "",
    cases: str = "CASES",
    reference: str = "",
    fast: Callable[..., Any] | None = None,
    **more: Any,  # noqa: ANN401 - the other fields of a Kernel
) -> Kernel:
    """A Kernel whose reference and cases are in the operation's folder; by default all have the operation's name."""
    folder, own = operation.__module__, operation.__name__
    return Kernel(
        name or own,
        fast or operation,
        getattr(import_module(f"{folder}.reference"), reference or own),
        getattr(import_module(f"{folder}.cases"), cases),
        **more,
    )


_matmul = partial(
    _kernel, matmul, bound=error_bounds.product, why="float32 sums of K products, rounded once at the store"
)
_projection = partial(
    _kernel,
    fused_linear,
    fast=_joined,
    bound=error_bounds.fused_linear,
    why="float32 sums of K products, rounded after each fused operation",
)
_norm = partial(
    _kernel,
    rms_norm,
    parts=batch_invariance.of_normed_rows,
    bound=error_bounds.scaling,
    why="the root of a float32 sum of squares, rounded once at the store",
)
_attention = partial(
    _kernel, paged_attention, why="scores rounded relative to their terms, a sum of T values, rounded once at the store"
)

KERNELS: Final = (
    _kernel(store_kv, writes=(0,)),
    _kernel(compact_kv, writes=(0,)),
    _attention(fast=partial(_attend, deterministic=False), bound=error_bounds.attention),
    _attention(
        "paged_attention deterministic",
        fast=partial(_attend, deterministic=True),
        parts=batch_invariance.of_queries,
        bound=partial(error_bounds.attention, by_row=True),
    ),
    _kernel(tree_layout),
    _kernel(accept_path),
    _kernel(expand_topk, bound=lambda *_: 0.0, why="one float32 product per score in both implementations"),
    _kernel(select_tree),
    _matmul(cases="PLAIN_CASES", parts=batch_invariance.of_rows),
    _matmul(
        "matmul of several", "SEVERAL_CASES", reference="several", fast=_several, parts=batch_invariance.of_batched_rows
    ),
    _matmul("matmul added", "ADDED_CASES", parts=batch_invariance.of_added_rows, writes=(2,)),
    _norm(cases="PLAIN_CASES"),
    _norm("rms_norm into a buffer", "INTO_CASES", writes=(3,)),
    _kernel(
        rotary,
        writes=(0,),
        bound=error_bounds.rounding,
        why="two float32 products and a sum, rounded once at the store",
        parts=batch_invariance.of_rotated_rows,
    ),
    _kernel(
        silu_mul,
        bound=error_bounds.rounding,
        why="float32 arithmetic, rounded once at the store",
        parts=batch_invariance.of_rows,
    ),
    _projection(writes=(2,)),
    _projection("fused_linear before a norm", "NEXT_NORM_CASES", writes=(2, 10, 11)),
    _kernel(
        fused_linear,
        "fused_linear after another",
        "CHAINED_CASES",
        reference="chained",
        fast=_chained,
        writes=(2, 4, 5, 7),
        bound=error_bounds.chained,
        why="a projection's own bound plus the propagated error of the first projection",
    ),
    _kernel(
        gated_delta,
        writes=(6, 7),
        bound=error_bounds.gated_delta,
        why="float32 sums over a head for every token; products of rounded operands in the chunked form",
    ),
    _kernel(gather, cases="GATHER_CASES"),
    _kernel(scatter, cases="SCATTER_CASES", writes=(0,)),
    _kernel(uniform, cases="UNIFORM_CASES", why="identical 53 bits"),
    _kernel(argmax, why="token ids"),
    _kernel(draw, cases="DRAW_CASES", why="token ids"),
    _kernel(
        probabilities,
        cases="PROBABILITY_CASES",
        bound=error_bounds.masses,
        why="exponentials of float32 quotients, normalised",
    ),
    _kernel(rank_sum, fast=_summed, writes=(2,), bound=lambda *_: 0.0, why="additions in one order, rounded alike"),
    _kernel(reject_drafts, why="token ids"),
    _kernel(verify_lengths),
)

CPU_KERNELS: Final = (
    _kernel(decoder_layer, writes=(0, 11), bound=error_bounds.decoder_layer, why="chained float32 sums"),
)
