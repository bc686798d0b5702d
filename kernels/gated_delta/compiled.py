"""The gated delta rule as loops that numba compiles: one token after the other, each sum in one order on every CPU."""

from __future__ import annotations

import numpy as np

from specmatrix.kernels.numba_jit import jit

ZERO, ONE, TAIL = np.float32(0), np.float32(1), np.float32(1e-6)


@jit(exact=True)
def _unit(x, factor, out):
    """Vectors x [G, D] of length `factor`."""
    for g in range(len(x)):
        total = ZERO
        for i in range(x.shape[1]):
            total += x[g, i] * x[g, i]
        scale = factor / np.sqrt(total + TAIL)
        for i in range(x.shape[1]):
            out[g, i] = x[g, i] * scale


@jit(
    "void(f4[:,:,::1],f4[:,:,::1],f4[:,:,::1],f4[:,:,:,::1],i8[::1],i8[:,::1],i8[:,::1],b1,f4,f4[:,:,:,::1])",
    exact=True,
)
def recur(mixed, beta, decay, states, read, write, parents, tree, factor, made):
    heads, key_dim, value_dim = states.shape[1:]
    values = mixed.shape[2] - heads * value_dim
    key_heads = values // (2 * key_dim)
    unit = np.empty((2 * key_heads, key_dim), np.float32)
    state, change = np.empty(states.shape[1:], np.float32), np.empty(value_dim, np.float32)
    for r in range(len(mixed)):
        state[:] = states[read[r]]
        for n in range(mixed.shape[1]):
            if tree and n > 0:
                state[:] = states[write[r, parents[r, n]]]
            keys = mixed[r, n, :values].reshape(2 * key_heads, key_dim)
            _unit(keys[:key_heads], factor, unit[:key_heads])
            _unit(keys[key_heads:], ONE, unit[key_heads:])
            for head in range(heads):
                group = head * key_heads // heads
                q, k, v = unit[group], unit[key_heads + group], mixed[r, n, values + head * value_dim :]
                kept, rate, out = decay[r, n, head], beta[r, n, head], made[r, n, head]
                out[:] = ZERO
                for i in range(key_dim):
                    row, key = state[head, i], k[i]
                    for j in range(value_dim):
                        row[j] *= kept
                        out[j] += row[j] * key
                for j in range(value_dim):
                    change[j] = (v[j] - out[j]) * rate
                out[:] = ZERO
                for i in range(key_dim):
                    row, key, query = state[head, i], k[i], q[i]
                    for j in range(value_dim):
                        row[j] += key * change[j]
                        out[j] += row[j] * query
            if write[r, n] > 0:
                states[write[r, n]] = state
