"""gated_delta, one program per request, value head and block of its values, which holds its state in registers.

A sum has the same order whatever else is in the call. The convolution and the gates are elementwise, in torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.gated_delta import prepare

VALUES = 32  # a program's share of a head's values


@triton.jit
def _recur(
    mixed, beta, decay, states, read, write, parents, made, tokens, heads, key_heads, key_dim, value_dim, scale,
    TREE: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
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
        q = q / tl.sqrt(tl.sum(q * q, 0) + 1e-6) * scale
        k = k / tl.sqrt(tl.sum(k * k, 0) + 1e-6)
        state = state * tl.load(decay + at * heads + head)
        change = (v - tl.sum(state * k[:, None], 0)) * tl.load(beta + at * heads + head)
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
) -> Tensor:
    preconditions.contiguous("gated_delta", states=states, read=read, write=write)
    mixed, beta, decay = prepare(u, b, a, conv, a_log, dt_bias, windows, read, write, parents)
    heads, key_dim, value_dim = states.shape[1:]
    batch, tokens, channels = mixed.shape
    made = torch.empty(batch, tokens, heads, value_dim, device=u.device)
    if made.numel():
        block = min(VALUES, triton.next_power_of_2(value_dim))
        tree = write if parents is None else parents.contiguous()
        key_heads = (channels - heads * value_dim) // (2 * key_dim)
        _recur[batch, heads, triton.cdiv(value_dim, block)](
            mixed.contiguous(), beta.contiguous(), decay.contiguous(), states, read, write, tree, made, tokens, heads,
            key_heads, key_dim, value_dim, key_dim**-0.5, TREE=parents is not None,
            KEYS=triton.next_power_of_2(key_dim), BLOCK=block,
        )  # fmt: skip
    return made
