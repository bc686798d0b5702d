"""Every operation beside its definition and its cases."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor

from kernels.accept_path import accept_path
from kernels.accept_path import cases as accept_path_cases
from kernels.accept_path import reference as accept_path_reference
from kernels.case import Arguments, Kernel
from kernels.expand_topk import cases as expand_topk_cases
from kernels.expand_topk import expand_topk
from kernels.expand_topk import reference as expand_topk_reference
from kernels.move_kv import cases as move_kv_cases
from kernels.move_kv import move_kv
from kernels.move_kv import reference as move_kv_reference
from kernels.paged_attention import cases as paged_attention_cases
from kernels.paged_attention import paged_attention, plan_reads
from kernels.paged_attention import reference as paged_attention_reference
from kernels.sample import cases as sample_cases
from kernels.sample import draw, uniform
from kernels.sample import reference as sample_reference
from kernels.select_tree import cases as select_tree_cases
from kernels.select_tree import reference as select_tree_reference
from kernels.select_tree import select_tree
from kernels.store_kv import cases as store_kv_cases
from kernels.store_kv import reference as store_kv_reference
from kernels.store_kv import store_kv
from kernels.tree_layout import cases as tree_layout_cases
from kernels.tree_layout import reference as tree_layout_reference
from kernels.tree_layout import tree_layout


def _attend(
    q: Tensor,
    cache: Tensor,
    read_slots: Tensor,
    bias: Tensor,
    kv_heads: int,
    value_dim: int | None = None,
    scale: float | None = None,
    *,
    deterministic: bool,
) -> Tensor:
    """plan_reads and paged_attention on the arguments of the reference."""
    heads, head_dim = q.shape[2:]
    reads = plan_reads(read_slots, bias, heads, kv_heads, head_dim, deterministic, True, value_dim, scale)
    return paged_attention(q, cache.view(-1, head_dim), reads)


def _attention_bound(arguments: Arguments) -> float:
    """4 eps sqrt(T), times the largest score or value: the size of what is rounded."""
    q, cache, read_slots = arguments[:3]
    if not q.numel():
        return 0.0
    planes = cache.double().nan_to_num().abs()
    keys, values = planes[:, 0], planes[:, -1]
    scale = arguments[6] if len(arguments) > 6 else q.shape[3] ** -0.5
    scores = float(q.double().abs().sum(-1).max() * keys.max()) * scale
    return float(4 * torch.finfo(q.dtype).eps * read_slots.shape[1] ** 0.5 * max(1.0, scores) * float(values.max()))


_ATTENTION = partial(
    Kernel,
    reference=paged_attention_reference.paged_attention,
    cases=paged_attention_cases.CASES,
    bound=_attention_bound,
    why="a score is rounded in proportion to its terms, an output is a sum of T values, and one rounding at the store",
)

KERNELS: Final = (
    Kernel("store_kv", partial(store_kv, checked=True), store_kv_reference.store_kv, store_kv_cases.CASES, writes=(0,)),
    Kernel("move_kv", partial(move_kv, checked=True), move_kv_reference.move_kv, move_kv_cases.CASES, writes=(0,)),
    _ATTENTION(name="paged_attention", fast=partial(_attend, deterministic=False)),
    _ATTENTION(name="paged_attention deterministic", fast=partial(_attend, deterministic=True)),
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
        bound=lambda _: 0.0,
        why="one float32 product per score in both",
    ),
    Kernel(
        "select_tree",
        partial(select_tree, checked=True),
        select_tree_reference.select_tree,
        select_tree_cases.CASES,
    ),
    Kernel("uniform", uniform, sample_reference.uniform, sample_cases.UNIFORM_CASES, why="the same 53 bits"),
    Kernel("draw", draw, sample_reference.draw, sample_cases.DRAW_CASES, why="ids"),
)
