"""Bounds on a floating-point result's absolute error against its reference, derived from its roundings.

Each function takes a case's arguments and the reference's results and returns one bound for all results or one per
result; a bound is a scalar or has the result's shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels.case import Arguments, Bound
from specmatrix.kernels.fused_linear import PART
from specmatrix.kernels.matmul.reference import wide_product

EPS32 = torch.finfo(torch.float32).eps


def rounding(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """8 eps times the largest magnitude in each result."""
    eps = torch.finfo(arguments[0].dtype).eps
    return tuple(8 * eps * float(one.double().abs().max()) if one.numel() else 0.0 for one in wanted)


def scaling(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """8 eps times each element."""
    return tuple(8 * torch.finfo(arguments[0].dtype).eps * one.double().abs() for one in wanted)


def masses(arguments: Arguments, wanted: Sequence[Tensor]) -> Bound:
    """eps32 of each mass for every unit of the exponents, whose quotients are rounded, and for the sum."""
    return EPS32 * (16 + 4 * wanted[0].double().clamp(min=1e-30).log().abs()) * wanted[0].double()


def attention(arguments: Arguments, wanted: Sequence[Tensor], by_row: bool = False) -> Bound:
    """Relative to the attention-weighted magnitudes of the values: 2 eps, as weights and results are rounded to the
    values' dtype, plus 4 eps32 sqrt(T) times the largest score, a float32.

    by_row: adds eps32 of the weighted row maxima of the values, as each row is rounded relative to its maximum.
    """
    q, cache, read_slots, bias, kv_heads = arguments[:5]
    if not q.numel():
        return 0.0
    value_dim, given = (*arguments[5:7], None, None)[:2]
    factor = q.shape[3] ** -0.5 if given is None else given
    read = cache[read_slots].double().nan_to_num()
    keys, values = (read[:, :, plane].repeat_interleave(q.shape[2] // kv_heads, 2) for plane in (0, -1))
    scores = torch.einsum("bwhd,bthd->bhwt", q.double(), keys) * factor
    weights = torch.where(bias == 0, scores, float("-inf")).softmax(3)
    sizes = torch.einsum("bhwt,bthd->bwhd", weights, values[..., :value_dim].abs()).reshape(wanted[0].shape)
    largest = max(1.0, float(q.double().abs().sum(-1).max() * keys.abs().max()) * factor)
    off = (2 * torch.finfo(q.dtype).eps + 4 * EPS32 * float(read_slots.shape[1]) ** 0.5 * largest) * sizes
    if by_row:
        peaks = values[..., :value_dim].abs().amax(3, True).expand(*values.shape[:3], value_dim or values.shape[3])
        off += EPS32 * torch.einsum("bhwt,bthd->bwhd", weights, peaks).reshape(off.shape)
    return off


def product(arguments: Arguments, wanted: Sequence[Tensor]) -> Bound:
    """One rounding at the store, plus the error of a float32 sum of K products, which a GPU may add sequentially."""
    x, weight = arguments[:2]
    if not x.numel() or not weight.numel():
        return 0.0
    if x.dim() == 3:
        each = (product((one, two), wanted) for one, two in zip(x, weight, strict=True))
        return torch.cat([torch.as_tensor(one) for one in each])
    before = arguments[2].double().abs() if len(arguments) > 2 else 0.0
    largest = wide_product(x, weight).abs() + before
    return torch.finfo(x.dtype).eps * largest + _chained(x, wide_product(x, weight, sizes=True) + before)


def fused_linear(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """The returned tensor and `out`; then the rows scaled by a norm and its sums of squares, where one follows."""
    x, weight, out, sums, eps, rotation, heads, add, gated = arguments[:9]
    if not out.numel():
        return (0.0,) * len(wanted)
    off = _joined(x, weight, out if add else None, sums, eps, gated)
    if rotation is not None:
        pairs = off[:, : 2 * heads * rotation.shape[1]].unflatten(1, (-1, 2))
        pairs[:] = pairs.sum(2, keepdim=True)
    if len(arguments) == 12:
        return off, off, *_begun(off, wanted[1], arguments[9], wanted[2])
    return off, off


def chained(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """The returned tensor; out, scaled rows and sums of squares of the first projection; and `last`, to which the first
    one's roundings propagate as independent errors: 10 eps of the root of the sum of squared products."""
    x, weight, out, scale, _, _, behind, last, eps = arguments
    if not last.numel() or not out.numel():
        return (0.0,) * len(wanted)
    _, out, scaled, squares, _ = wanted
    first = _joined(x, weight, None, None, eps, False)
    length = (squares.double().sum(1, keepdim=True) / scaled.shape[1] + eps).sqrt()
    reached = (scaled.double().square() @ behind.double().square()).sqrt() / length
    second = _joined(scaled, behind, None, squares, eps, False) + 10 * torch.finfo(x.dtype).eps * reached
    return second, first, *_begun(first, out, scale, scaled), second


def decoder_layer(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """32 eps32 sqrt(K) times the largest magnitude in each result, where K is the number of terms in the longest sum:
    about ten stages round their sums and propagate the errors of earlier stages."""
    _, _, qkv, _, _, down = arguments[:6]
    terms = max(*qkv.shape, *down.shape)
    return tuple(32 * EPS32 * terms**0.5 * float(one.abs().max()) if one.numel() else 0.0 for one in wanted)


def _chained(x: Tensor, sizes: Tensor) -> Tensor:
    """The error of float32 sums of K products whose magnitudes add up to `sizes`. x [M, K]."""
    return 2 * EPS32 * float(x.shape[1]) ** 0.5 * sizes


def _joined(x: Tensor, weight: Tensor, added: Tensor | None, sums: Tensor | None, eps: float, gated: bool) -> Tensor:
    """A product rounded twice, and once more after the gate, whose slope is below 1.1."""
    before = 0.0 if added is None else added.double().abs()
    length = 1.0 if sums is None else (sums.double().sum(1, keepdim=True) / x.shape[1] + eps).sqrt()
    found = wide_product(x, weight) / length
    rounded = 2 * torch.finfo(x.dtype).eps
    off = rounded * (found.abs() + before) + _chained(x, wide_product(x, weight, sizes=True) / length + before)
    if not gated:
        return off
    (gate, other), (gate_off, other_off) = found.chunk(2, 1), off.chunk(2, 1)
    passed = (gate * gate.sigmoid()).abs()
    return 1.1 * gate_off * (other.abs() + other_off) + passed * other_off + rounded * passed * other.abs()


def _begun(off: Tensor, out: Tensor, scale: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The first half of a norm over a result with the error `off`: scaled rows and sums of PART squares."""
    rows = off * scale.double().abs() + torch.finfo(scaled.dtype).eps * scaled.double().abs()
    size = out.double().abs()
    squares = off * (2 * size + off) + 4 * EPS32 * size.square()
    return rows, pad(squares, (0, -out.shape[1] % PART)).unflatten(1, (-1, PART)).sum(2)


def gated_delta(arguments: Arguments, wanted: Sequence[Tensor]) -> tuple[Bound, ...]:
    """A few eps32 of the largest value or state for every token: with keys of unit length no step enlarges an error.
    Windows are copies. The chunked form rounds the operands of six products one after the other, so an element is off
    by 12 eps of its own size and of the typical one."""
    u, states = arguments[0], arguments[7]
    if len(arguments) > 11 and u.dtype is not torch.float32 and u.shape[1] >= 32:
        sizes = [part.double().abs() for part in wanted]
        result, _, state = (12 * torch.finfo(u.dtype).eps * (one + one.square().mean().sqrt()) for one in sizes)
        return result, 0.0, state
    size = max([1.0, *(float(part.double().abs().max()) for part in wanted if part.numel())])
    bound = 16 * EPS32 * (u.shape[1] + states.shape[2]) * size
    return bound, 0.0, bound
