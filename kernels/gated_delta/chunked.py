"""The chunked form of the gated delta rule (arXiv 2406.06484 and 2412.06464), for rows of which only the last token's
state is kept.

Within a chunk of 64 tokens, with g the cumulated logarithms of decays, D = exp(g_i - g_j) where i >= j and A the part
of beta_i D_ij k_i k_j below the diagonal: T = (1 + A)^-1, W = T (beta exp(g) K), U = T (beta V), and from the state S
before the chunk V' = U - W S; outputs exp(g) Q S + (D * Q K^T) V', next state exp(g_64) S + (exp(g_64 - g) K)^T V'.
Operands of products have the inputs' dtype, of two bytes, and those of the inverse's are tf32; sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels.dot import dot, wide
from specmatrix.kernels.gated_delta import CHUNK, scratch

LEAST = 32  # tokens of a row that are worth four launches
SUB = tl.constexpr(16)  # rows of the blocks of 1 + A that are inverted alone, a quarter of a chunk
FULL = 256  # programs that fill a GPU


@triton.jit
def gates(b, a, a_log, dt_bias):
    """beta, and the logarithm of the decay."""
    rate = a.to(tl.float32) + tl.load(dt_bias)
    rate = tl.where(rate > 20, rate, tl.log(1 + tl.exp(tl.minimum(rate, 20.0))))
    return 1 / (1 + tl.exp(-b.to(tl.float32))), -tl.exp(tl.load(a_log)) * rate


@triton.jit
def _inverse(lower, CHUNK: tl.constexpr):
    """(1 + lower)^-1 of a strictly lower triangular [CHUNK, CHUNK]. D^-1 inverts the diagonal blocks row by row. With L
    the blocks below them, M = D^-1 L is nilpotent (M^4 = 0), so (1 + M)^-1 D^-1 = (1 + M^2) (1 - M) D^-1."""
    BLOCKS: tl.constexpr = CHUNK // SUB
    p, r = tl.arange(0, BLOCKS), tl.arange(0, SUB)
    same = p[:, None, None, None] == p[None, None, :, None]
    blocks = tl.reshape(lower, (BLOCKS, SUB, BLOCKS, SUB))
    diagonal = -tl.sum(tl.where(same, blocks, 0.0), 2)
    inner = diagonal
    for i in range(1, SUB):
        line = tl.sum(tl.where(r[None, :, None] == i, diagonal, 0.0), 1)
        line += tl.sum(line[:, :, None] * inner, 1)
        inner = tl.where(r[None, :, None] == i, line[:, None, :], inner)
    inner += tl.where(r[None, :, None] == r[None, None, :], 1.0, 0.0)
    inner = tl.reshape(tl.where(same, inner[:, :, None, :], 0.0), (CHUNK, CHUNK))
    rest = tl.dot(inner, tl.reshape(tl.where(same, 0.0, blocks), (CHUNK, CHUNK)), input_precision="tf32")
    found = inner - tl.dot(rest, inner, input_precision="tf32")
    return found + tl.dot(tl.dot(rest, rest, input_precision="tf32"), found, input_precision="tf32")


@triton.jit
def _represent(
    mixed, b, a, a_log, dt_bias, write, w, values, sums, ends, tokens, b_row, b_token, a_row, a_token, heads,
    key_heads, key_dim, value_dim, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """W and U of a chunk and head, the sums g, and the place in the chunk of the token whose state is kept, or -1."""
    row, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, KEYS), tl.arange(0, VALUES)
    n = tl.program_id(0) * CHUNK + t
    live, group = n < tokens, head * key_heads // heads
    token, own = row * tokens + n, (row * heads + head) * tokens + n
    line = mixed + token[:, None] * (2 * key_heads * key_dim + heads * value_dim)
    if head == 0:
        slot = tl.load(write + token, mask=live, other=0)
        end = tl.max(tl.where(slot > 0, t, -1), 0)
        tl.store(ends + row * tl.num_programs(0) + tl.program_id(0), end)
    gate = tl.load(b + row * b_row + n * b_token + head, mask=live, other=0.0)
    beta, decay = gates(
        gate, tl.load(a + row * a_row + n * a_token + head, mask=live, other=0.0), a_log + head, dt_bias + head
    )
    g = tl.cumsum(tl.where(live, decay, 0.0), 0)
    tl.store(sums + own, g, mask=live)
    keys, inside = (key_heads + group) * key_dim + i[None, :], live[:, None] & (i < key_dim)[None, :]
    k = tl.load(line + keys, mask=inside, other=0.0)
    lower = dot(k, tl.trans(k), WIDE) * beta[:, None] * tl.exp(tl.minimum(g[:, None] - g[None, :], 0.0))
    solved = _inverse(tl.where(t[:, None] > t[None, :], lower, 0.0), CHUNK).to(k.dtype)
    made = dot(solved, (k.to(tl.float32) * (beta * tl.exp(g))[:, None]).to(k.dtype), WIDE)
    tl.store(w + own[:, None] * key_dim + i[None, :], made, mask=inside)
    inside = live[:, None] & (j < value_dim)[None, :]
    v = tl.load(line + 2 * key_heads * key_dim + head * value_dim + j[None, :], mask=inside, other=0.0)
    made = dot(solved, (v.to(tl.float32) * beta[:, None]).to(k.dtype), WIDE)
    tl.store(values + own[:, None] * value_dim + j[None, :], made, mask=inside)


@triton.jit
def _advance(
    mixed, w, values, sums, ends, states, read, write, before, tokens, heads, key_heads, key_dim, value_dim,
    WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The states before each chunk, V' in place of U, and the state after the token whose slot takes it."""
    row, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, KEYS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here, there = i < key_dim, j < value_dim
    inside, group = here[:, None] & there[None, :], head * key_heads // heads
    cell, size, first = i[:, None] * value_dim + j[None, :], key_dim * value_dim, (row * heads + head) * tokens
    chunks, channels = tl.cdiv(tokens, CHUNK), 2 * key_heads * key_dim + heads * value_dim
    state = tl.load(states + (tl.load(read + row) * heads + head) * size + cell, mask=inside, other=0.0)
    for c in range(chunks):
        n = c * CHUNK + t
        live = n < tokens
        tl.store(before + ((row * heads + head) * chunks + c) * size + cell, state, mask=inside)
        end = tl.load(ends + row * chunks + c)
        g = tl.load(sums + first + n, mask=live, other=0.0)
        last = tl.load(sums + first + tl.minimum(c * CHUNK + CHUNK, tokens) - 1)
        at = (first + n)[:, None]
        back = tl.load(w + at * key_dim + i[None, :], mask=live[:, None] & here[None, :], other=0.0)
        place, held = values + at * value_dim + j[None, :], live[:, None] & there[None, :]
        new = tl.load(place, mask=held, other=0.0).to(tl.float32) - dot(back, state.to(back.dtype), WIDE)
        tl.store(place, new, mask=held)
        keys = mixed + (row * tokens + n)[None, :] * channels + ((key_heads + group) * key_dim + i)[:, None]
        k = tl.load(keys, mask=here[:, None] & live[None, :], other=0.0)
        if end >= 0:
            kept = tl.load(sums + first + c * CHUNK + end)
            part = new * tl.where(t <= end, tl.exp(tl.minimum(kept - g, 0.0)), 0.0)[:, None]
            slot = tl.load(write + row * tokens + c * CHUNK + end)
            done = state * tl.exp(kept) + dot(k, part.to(k.dtype), WIDE)
            tl.store(states + (slot * heads + head) * size + cell, done, mask=inside)
        part = new * tl.where(live, tl.exp(tl.minimum(last - g, 0.0)), 0.0)[:, None]
        state = state * tl.exp(last) + dot(k, part.to(k.dtype), WIDE)


@triton.jit
def _read(
    mixed, values, sums, before, made, tokens, heads, key_heads, key_dim, value_dim,
    WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The outputs of a chunk, head and block of its values."""
    row, head = (tl.program_id(2) // heads).to(tl.int64), tl.program_id(2) % heads
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, KEYS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, chunks = tl.program_id(1), tl.num_programs(1)
    n, here, there = c * CHUNK + t, i < key_dim, j < value_dim
    live, group = n < tokens, head * key_heads // heads
    own, line = (
        (row * heads + head) * tokens + n,
        mixed + (row * tokens + n) * (2 * key_heads * key_dim + heads * value_dim),
    )
    q = tl.load(line[:, None] + (group * key_dim + i)[None, :], mask=live[:, None] & here[None, :], other=0.0)
    keys = line[None, :] + ((key_heads + group) * key_dim + i)[:, None]
    k = tl.load(keys, mask=here[:, None] & live[None, :], other=0.0)
    cell = ((row * heads + head) * chunks + c) * key_dim * value_dim + i[:, None] * value_dim + j[None, :]
    state = tl.load(before + cell, mask=here[:, None] & there[None, :], other=0.0)
    held = live[:, None] & there[None, :]
    new = tl.load(values + own[:, None] * value_dim + j[None, :], mask=held, other=0.0)
    g = tl.load(sums + own, mask=live, other=0.0)
    among = dot(q, k, WIDE) * tl.exp(tl.minimum(g[:, None] - g[None, :], 0.0))
    among = tl.where(t[:, None] >= t[None, :], among, 0.0).to(q.dtype)
    out = dot(q, state, WIDE) * tl.exp(g)[:, None] + dot(among, new, WIDE)
    tl.store(made + ((row * tokens + n) * heads + head)[:, None] * value_dim + j[None, :], out, mask=held)


def run(
    mixed: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    states: Tensor,
    read: Tensor,
    write: Tensor,
    made: Tensor,
    key_heads: int,
) -> Tensor:
    """Fill `made` float32 [B, N, Hv, Dv]. mixed [B, N, C]: queries, keys and values, the first two of unit length and
    queries scaled; write int64 [B, N]: at most one slot in each row; other arguments as of `gated_delta`."""
    batch, tokens, heads, value_dim = made.shape
    key_dim, chunks = states.shape[2], triton.cdiv(tokens, CHUNK)
    needed = scratch(batch, tokens, heads, key_dim, value_dim, mixed.dtype)
    w, values, before, sums, ends = (torch.empty(shape, dtype=kind, device=mixed.device) for shape, kind in needed)
    sizes = tokens, heads, key_heads, key_dim, value_dim
    # Triton 3.6 lets a product of four warps with fewer than 64 columns read beyond its shared memory (`_represent`).
    keys, block = (max(64, triton.next_power_of_2(size)) for size in (key_dim, value_dim))
    flags = {"WIDE": wide(mixed), "CHUNK": CHUNK, "KEYS": keys}
    _represent[chunks, batch * heads](
        mixed, b, a, a_log, dt_bias, write, w, values, sums, ends, tokens, *b.stride()[:2], *a.stride()[:2], *sizes[1:],
        **flags, VALUES=block, num_warps=4,
    )  # fmt: skip
    part = 64
    few = part if batch * heads * triton.cdiv(value_dim, part) >= FULL else part // 2
    _advance[triton.cdiv(value_dim, few), batch * heads](
        mixed, w, values, sums, ends, states, read, write, before, *sizes, **flags, BLOCK=few, num_warps=4,
        num_stages=3 if few < part else 2,
    )  # fmt: skip
    _read[triton.cdiv(value_dim, part), chunks, batch * heads](
        mixed, values, sums, before, made, *sizes, **flags, BLOCK=part, num_warps=4,
    )  # fmt: skip
    return made
