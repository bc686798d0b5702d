"""The reference of gated_delta: one token at a time in float64, each from its parent's window and state."""

from __future__ import annotations

import torch
from torch import Tensor


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
    parents: Tensor | None = None,
    chunk: bool = False,
) -> Tensor:
    heads, key_dim, value_dim = states.shape[1:]
    key_heads = (u.shape[2] - heads * value_dim) // (2 * key_dim)
    made = torch.empty(*u.shape[:2], heads, value_dim)
    for row in range(len(u)):
        after = {-1: (windows[read[row]].clone(), states[read[row]].double())}
        for n in range(u.shape[1]):
            window, state = after[n - 1 if parents is None else int(parents[row, n])]
            line = torch.cat((window, u[row, n : n + 1]))
            mixed = torch.nn.functional.silu((line.double() * conv.double().t()).sum(0))
            state = state.clone()
            for head in range(heads):
                group = head * key_heads // heads
                q = mixed[group * key_dim :][:key_dim]
                k = mixed[(key_heads + group) * key_dim :][:key_dim]
                v = mixed[2 * key_heads * key_dim + head * value_dim :][:value_dim]
                q, k = (part / (part.square().sum() + 1e-6).sqrt() for part in (q, k))
                rate = torch.nn.functional.softplus(a[row, n, head].double() + dt_bias[head].double())
                state[head] *= (-a_log[head].double().exp() * rate).exp()
                change = b[row, n, head].double().sigmoid() * (v - state[head].t() @ k)
                state[head] += torch.outer(k, change)
                made[row, n, head] = state[head].t() @ q / key_dim**0.5
            after[n] = line[1:], state
            if slot := int(write[row, n]):
                windows[slot], states[slot] = line[1:], state.float()
    return made
