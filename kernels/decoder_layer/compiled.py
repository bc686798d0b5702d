"""decoder_layer as loops that numba compiles for this machine's CPU.

A row's bits depend on that row alone and on the keys that it sees: each sum has one order, whatever the number of rows.
"""

from __future__ import annotations

import numpy as np

from specmatrix.kernels.numba_jit import jit

ZERO, ONE = np.float32(0), np.float32(1)
LOG2E, HALF = np.float32(1.44269504088896341), np.float32(0.5)
# ln 2 in two parts, the first of few bits, and the coefficients of exp on half of it (Cephes' expf).
LN2, LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
MIN_EXPONENT, MAX_EXPONENT = np.float32(-87), np.float32(88)


@jit()
def exp(x):
    """e^x within 2 ulp; x is clamped to the range whose results are normal numbers, NaN stays NaN."""
    x = MIN_EXPONENT if x < MIN_EXPONENT else x
    x = MAX_EXPONENT if x > MAX_EXPONENT else x
    power = np.floor(x * LOG2E + HALF)
    y = x - power * LN2 - power * LN2_REST
    found = ((((P0 * y + P1) * y + P2) * y + P3) * y + P4) * y + P5
    bits = np.int32((np.int32(power) + np.int32(127)) << np.int32(23))
    return (found * y * y + y + ONE) * bits.view(np.float32)


@jit()
def _product(x, weight, out, add):
    """out (+)= x [R, K] @ weight [K, N]; four rows share the loads of a weight."""
    rows, depth = x.shape
    columns = weight.shape[1]
    whole = depth // 4 * 4
    if not add:
        out[:] = ZERO
    for r in range(0, rows - 3, 4):
        out0, out1, out2, out3 = out[r], out[r + 1], out[r + 2], out[r + 3]
        x0, x1, x2, x3 = x[r], x[r + 1], x[r + 2], x[r + 3]
        for k in range(0, whole, 4):
            w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
            for j in range(columns):
                a, b, c, d = w0[j], w1[j], w2[j], w3[j]
                out0[j] = out0[j] + x0[k] * a + x0[k + 1] * b + x0[k + 2] * c + x0[k + 3] * d
                out1[j] = out1[j] + x1[k] * a + x1[k + 1] * b + x1[k + 2] * c + x1[k + 3] * d
                out2[j] = out2[j] + x2[k] * a + x2[k + 1] * b + x2[k + 2] * c + x2[k + 3] * d
                out3[j] = out3[j] + x3[k] * a + x3[k + 1] * b + x3[k + 2] * c + x3[k + 3] * d
    for r in range(rows // 4 * 4, rows):
        out0, x0 = out[r], x[r]
        for k in range(0, whole, 4):
            w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
            for j in range(columns):
                out0[j] = out0[j] + x0[k] * w0[j] + x0[k + 1] * w1[j] + x0[k + 2] * w2[j] + x0[k + 3] * w3[j]
    for r in range(rows):
        out0 = out[r]
        for k in range(whole, depth):
            x0, w0 = x[r, k], weight[k]
            for j in range(columns):
                out0[j] = out0[j] + x0 * w0[j]


@jit(sums=True)
def _norm(x, tail, out):
    """x / sqrt(|x|^2 + tail) of each row."""
    rows, columns = x.shape
    for r in range(rows):
        total = ZERO
        for j in range(columns):
            total += x[r, j] * x[r, j]
        factor = ONE / np.sqrt(total + tail)
        for j in range(columns):
            out[r, j] = x[r, j] * factor


@jit(sums=True)
def _prepare_heads(qkv, scale, head_tail, rotation):
    """Norm (if scale is not empty) and rotate the leading heads of each row in place; heads are pairs."""
    rows, pairs = len(qkv), rotation.shape[2]
    dim = 2 * pairs
    normed = scale.shape[0] > 0
    for r in range(rows):
        for head in range(scale.shape[1] // dim):
            x = qkv[r, head * dim : (head + 1) * dim]
            if normed:
                total = ZERO
                for j in range(dim):
                    total += x[j] * x[j]
                factor = ONE / np.sqrt(total + head_tail)
                for j in range(dim):
                    x[j] = x[j] * factor * scale[0, head * dim + j]
            for j in range(pairs):
                turn = rotation[r, 0, j]
                a, b = x[2 * j], x[2 * j + 1]
                x[2 * j] = a * turn.real - b * turn.imag
                x[2 * j + 1] = a * turn.imag + b * turn.real


@jit(sums=True)
def _attend(qkv, cache, read, bias, heads, kv_heads, factor, out):
    """Attention of each row of qkv over the slots that it sees, in the order of their positions."""
    requests, length = read.shape
    width, group = bias.shape[2], heads // kv_heads
    dim = cache.shape[1] // (2 * kv_heads)
    scores, seen = np.empty(length, np.float32), np.empty(length, np.int64)
    for r in range(requests * width):
        slots, mask = read[r // width], bias[r // width, 0, r % width]
        count = 0
        for t in range(length):
            if mask[t] == ZERO:
                seen[count] = slots[t]
                count += 1
        for head in range(heads):
            at = head // group * dim
            q, mixed = qkv[r, head * dim : (head + 1) * dim], out[r, head * dim : (head + 1) * dim]
            for t in range(count):
                key = cache[seen[t], at : at + dim]
                score = ZERO
                for j in range(dim):
                    score += q[j] * key[j]
                scores[t] = score * factor
            largest = scores[0]
            for t in range(1, count):
                largest = max(largest, scores[t])
            total = ZERO
            for t in range(count):
                scores[t] = exp(scores[t] - largest)
                total += scores[t]
            weight = ONE / total
            mixed[:] = ZERO
            at += kv_heads * dim
            whole = count // 4 * 4
            for t in range(0, whole, 4):
                v0, v1 = cache[seen[t], at : at + dim], cache[seen[t + 1], at : at + dim]
                v2, v3 = cache[seen[t + 2], at : at + dim], cache[seen[t + 3], at : at + dim]
                p0, p1, p2, p3 = scores[t], scores[t + 1], scores[t + 2], scores[t + 3]
                for j in range(dim):
                    mixed[j] += (p0 * v0[j] + p1 * v1[j]) + (p2 * v2[j] + p3 * v3[j])
            for t in range(whole, count):
                v0, p0 = cache[seen[t], at : at + dim], scores[t]
                for j in range(dim):
                    mixed[j] += p0 * v0[j]
            for j in range(dim):
                mixed[j] *= weight


@jit(
    "void(f4[:,::1],f4[:,::1],b1,f4[:,::1],f4[:,::1],f4[:,::1],f4,f4,c8[:,:,::1],f4[:,::1],i8[::1],i8[:,::1],f4[:,:,:,::1],i8,i8,f4)"
)
def attention(
    x,
    h,
    normed,
    qkv_weight,
    out_weight,
    scale,
    tail,
    head_tail,
    rotation,
    cache,
    write,
    read,
    bias,
    heads,
    kv_heads,
    factor,
):
    rows = len(x)
    qkv = np.empty((rows, qkv_weight.shape[1]), np.float32)
    if normed:
        scaled = np.empty_like(x)
        _norm(x, tail, scaled)
        _product(scaled, qkv_weight, qkv, False)
    else:
        _product(h, qkv_weight, qkv, False)
    _prepare_heads(qkv, scale, head_tail, rotation)
    columns = cache.shape[1]
    for r in range(rows):
        kept = cache[write[r]]
        for j in range(columns):
            kept[j] = qkv[r, qkv.shape[1] - columns + j]
    mixed = np.empty((rows, out_weight.shape[0]), np.float32)
    _attend(qkv, cache, read, bias, heads, kv_heads, factor, mixed)
    _product(mixed, out_weight, x, True)


@jit("void(f4[:,::1],f4[:,::1],f4[:,::1],f4)")
def feed_forward(x, gate_up, down, tail):
    rows, inner = len(x), down.shape[0]
    scaled = np.empty_like(x)
    _norm(x, tail, scaled)
    both = np.empty((rows, 2 * inner), np.float32)
    _product(scaled, gate_up, both, False)
    gated = np.empty((rows, inner), np.float32)
    for r in range(rows):
        for j in range(inner):
            gate = both[r, j]
            gated[r, j] = gate / (ONE + exp(-gate)) * both[r, inner + j]
    _product(gated, down, x, True)
