"""gated_delta: a launch for the convolution, then one program per request, value head and block of its values, which
holds its state in registers; or, of chunks whose sums may have any order, the chunked form.

A sum of the recurrent form has the same order whatever else is in the call.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.gated_delta import chunked

VALUES = 64  # a program's share of a head's values
ROWS = 32  # a program's share of the convolved tokens


@triton.jit
def _mix(
    u, conv, before, windows, read, write, parents, mixed, tokens, channels, u_row, u_token, key_heads, key_dim,
    value_dim, scale, TAPS: tl.constexpr, TREE: tl.constexpr, HELD: tl.constexpr, UNIT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """silu of the convolution of ROWS tokens and one head's channels, and the windows after them. HELD: `before` is a
    copy by row of the slots read. UNIT: vectors of queries and keys get unit length, and queries `scale`."""
    blocks = tl.cdiv(tokens, ROWS)
    row, part = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    n, i = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    of_keys = part < 2 * key_heads
    first = tl.where(of_keys, part * key_dim, 2 * key_heads * key_dim + (part - 2 * key_heads) * value_dim)
    live, here = n < tokens, i < tl.where(of_keys, key_dim, value_dim)
    inside, c = live[:, None] & here[None, :], first + i
    slot = row if HELD else tl.load(read + row)
    target = tl.load(write + row * tokens + n, mask=live, other=0)
    at, taps, total = n, (), tl.zeros((ROWS, WIDTH), tl.float32)
    for back in tl.static_range(TAPS):
        fresh = at >= 0
        old = before + (slot * (TAPS - 1) + TAPS - 1 + at)[:, None] * channels + c[None, :]
        new = u + row * u_row + at.to(tl.int64)[:, None] * u_token + c[None, :]
        tap = tl.load(tl.where(fresh[:, None], new, old), mask=inside, other=0.0)
        weight = tl.load(conv + c * TAPS + TAPS - 1 - back, mask=here, other=0.0).to(tl.float32)
        total = tl.fma(tap.to(tl.float32), tl.broadcast_to(weight[None, :], (ROWS, WIDTH)), total)
        taps += (tap,)
        above = tl.load(parents + row * tokens + at, mask=live & fresh, other=0).to(tl.int32) if TREE else at - 1
        at = tl.where(fresh, above, at - 1)
    total = total / (1 + tl.exp(-total))
    if UNIT:
        length = tl.sqrt(tl.sum(total * total, 1) + 1e-6)
        total *= tl.where(of_keys, tl.where(part < key_heads, scale, 1.0) / length, 1.0)[:, None]
    tl.store(mixed + (row * tokens + n)[:, None] * channels + c[None, :], total, mask=inside)
    tl.debug_barrier()  # a row may write the slot that it read
    for back in tl.static_range(TAPS - 1):
        to = windows + (target * (TAPS - 1) + TAPS - 2 - back)[:, None] * channels + c[None, :]
        tl.store(to, taps[back], mask=inside & (target > 0)[:, None])


@triton.jit
def _recur(
    mixed, b, a, a_log, dt_bias, states, read, write, parents, made, tokens, b_row, b_token, a_row, a_token, heads,
    key_heads, key_dim, value_dim, scale, TREE: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, j = tl.arange(0, KEYS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    here, there = i < key_dim, j < value_dim
    inside = here[:, None] & there[None, :]
    cell = head * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    size, group = heads * key_dim * value_dim, head * key_heads // heads
    state = tl.load(states + tl.load(read + row) * size + cell, mask=inside, other=0.0)
    for n in range(tokens):
        at = row * tokens + n
        if TREE and n > 0:
            tl.debug_barrier()  # the parent's state was stored by this program
            source = tl.load(write + row * tokens + tl.load(parents + at))
            state = tl.load(states + source * size + cell, mask=inside, other=0.0)
        line = mixed + at * (2 * key_heads * key_dim + heads * value_dim)
        q = tl.load(line + group * key_dim + i, mask=here, other=0.0)
        k = tl.load(line + (key_heads + group) * key_dim + i, mask=here, other=0.0)
        v = tl.load(line + 2 * key_heads * key_dim + head * value_dim + j, mask=there, other=0.0)
        gate = tl.load(b + row * b_row + n * b_token + head)
        beta, decay = chunked.gates(gate, tl.load(a + row * a_row + n * a_token + head), a_log + head, dt_bias + head)
        q = q / tl.sqrt(tl.sum(q * q, 0) + 1e-6) * scale
        k = k / tl.sqrt(tl.sum(k * k, 0) + 1e-6)
        state = state * tl.exp(decay)
        change = (v - tl.sum(state * k[:, None], 0)) * beta
        state += k[:, None] * change[None, :]
        tl.store(made + (at * heads + head) * value_dim + j, tl.sum(state * q[:, None], 0), mask=there)
        target = tl.load(write + at)
        tl.store(states + target * size + cell, state, mask=inside & (target > 0))


def gated_delta(
    u: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    windows: Tensor,
    states: Tensor,
    read: Tensor,
    write: Tensor,
    parents: Tensor | None,
    chunk: bool,
) -> Tensor:
    preconditions.dense("gated_delta", u=u, b=b, a=a)
    wanted = {"conv": conv, "a_log": a_log, "dt_bias": dt_bias, "windows": windows, "states": states}
    preconditions.contiguous("gated_delta", **wanted, read=read, write=write)
    heads, key_dim, value_dim = states.shape[1:]
    batch, tokens, channels = u.shape
    made = torch.empty(batch, tokens, heads, value_dim, device=u.device)
    if not made.numel():
        return made
    in_chunks = chunk and tokens >= chunked.LEAST and u.dtype is not torch.float32
    tree = write if parents is None else parents.contiguous()
    key_heads = (channels - heads * value_dim) // (2 * key_dim)
    sizes, scale = (heads, key_heads, key_dim, value_dim), key_dim**-0.5
    mixed = torch.empty(u.shape, dtype=u.dtype if in_chunks else torch.float32, device=u.device)
    rows, held = min(ROWS, triton.next_power_of_2(tokens)), tokens > ROWS
    before = windows.index_select(0, read) if held else windows
    _mix[batch * triton.cdiv(tokens, rows), 2 * key_heads + heads](
        u, conv, before, windows, read, write, tree, mixed, tokens, channels, *u.stride()[:2], *sizes[1:], scale,
        TAPS=conv.shape[1], TREE=parents is not None, HELD=held, UNIT=in_chunks, ROWS=rows,
        WIDTH=triton.next_power_of_2(max(key_dim, value_dim)), num_warps=4,
    )  # fmt: skip
    if in_chunks:
        return chunked.run(mixed, b, a, a_log, dt_bias, states, read, write, made, key_heads)
    block = min(VALUES, triton.next_power_of_2(value_dim))
    _recur[batch, heads, triton.cdiv(value_dim, block)](
        mixed, b, a, a_log, dt_bias, states, read, write, tree, made, tokens, *b.stride()[:2], *a.stride()[:2], *sizes,
        scale, TREE=parents is not None, KEYS=triton.next_power_of_2(key_dim), BLOCK=block, num_warps=2,
    )  # fmt: skip
    return made
