"""uniform, and draw without a sort: one program per row.

Top-k and top-p keep a prefix of the tokens sorted by descending mass, so the kept set is given by a threshold mass and
the number of tokens kept at exactly that mass, lower ids first. Both are found by bisection over the float's bits,
which order like its values. Sums are float64, block by block, independent of the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.sample import FIRST, GOLDEN, SECOND

BLOCK = 2048
# Masses are float32 of at most 1.0 (the likeliest token's): ONE_BITS are the bits of 1.0, and this many bits cover all.
MASS_BITS = 30
ONE_BITS = tl.constexpr(0x3F800000)


@triton.jit
def _mix(word, FIRST: tl.constexpr, SECOND: tl.constexpr):
    word = (word ^ _shift(word, 30)) * FIRST
    word = (word ^ _shift(word, 27)) * SECOND
    return word ^ _shift(word, 31)


@triton.jit
def _shift(word, BITS: tl.constexpr):
    """Logical right shift of an int64."""
    return (word >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def _uniform(
    seed, position, out, width, size, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, B: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = at < size
    state = _mix(tl.load(seed + at // width, mask=inside, other=0) + GOLDEN, FIRST, SECOND)
    state = state + (tl.load(position + at, mask=inside, other=0) + 1) * GOLDEN
    word = _shift(_mix(state, FIRST, SECOND), 11)
    tl.store(out + at, word.to(tl.float64) * (1.0 / 9007199254740992.0), mask=inside)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    preconditions.contiguous("uniform", seed=seed, position=position)
    out = torch.empty(position.shape, dtype=torch.float64, device=position.device)
    if size := out.numel():
        grid = (triton.cdiv(size, 256),)
        _uniform[grid](seed, position, out, position.shape[1], size, GOLDEN=GOLDEN, FIRST=FIRST, SECOND=SECOND, B=256)
    return out


@triton.jit
def _mass(logits, at, vocab, peak, heat):
    """exp((x - peak) / heat), and 0 past the vocabulary."""
    x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    return tl.exp((x - peak) / heat)


@triton.jit
def _above(logits, vocab, peak, heat, bits, BLOCK: tl.constexpr):
    """The number and sum of the masses above the mass with these bits, and the number of masses equal to it."""
    level = bits.to(tl.float32, bitcast=True)
    count = tl.zeros((), tl.int64)
    equal = tl.zeros((), tl.int64)
    total = tl.zeros((), tl.float64)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mass = _mass(logits, at, vocab, peak, heat)
        more = (mass > level) & (at < vocab)
        count += tl.sum(more.to(tl.int64), 0)
        equal += tl.sum(((mass == level) & (at < vocab)).to(tl.int64), 0)
        total += tl.sum(tl.where(more, mass, 0.0).to(tl.float64), 0)
    return count, total, equal


@triton.jit
def _cut(logits, vocab, peak, heat, top_k, top_p, BLOCK: tl.constexpr, MASS_BITS: tl.constexpr):
    """The bits of the smallest kept mass, and the number of tokens kept at exactly that mass."""
    bits = tl.zeros((), tl.int32)
    taken = tl.full((), vocab, tl.int64)
    if (top_k > 0) & (top_k < vocab):
        for step in range(MASS_BITS):
            more = bits | (1 << (MASS_BITS - 1 - step))
            count, _, equal = _above(logits, vocab, peak, heat, more, BLOCK)
            bits = tl.where(count + equal >= top_k, more, bits)
        count, _, _ = _above(logits, vocab, peak, heat, bits, BLOCK)
        taken = top_k - count
    count, total, equal = _above(logits, vocab, peak, heat, bits, BLOCK)
    taken = tl.minimum(taken, equal)
    level = bits.to(tl.float32, bitcast=True).to(tl.float64)
    total += taken.to(tl.float64) * level
    if top_p < 1.0:
        wanted = top_p.to(tl.float64) * total
        floor = bits
        kept = taken
        bits = tl.zeros((), tl.int32)
        for step in range(MASS_BITS):
            more = bits | (1 << (MASS_BITS - 1 - step))
            _, reached, equal = _above(logits, vocab, peak, heat, more, BLOCK)
            reached += equal.to(tl.float64) * more.to(tl.float32, bitcast=True).to(tl.float64)
            bits = tl.where(((reached >= wanted) | (more <= floor)) & (more <= ONE_BITS), more, bits)
        _, reached, equal = _above(logits, vocab, peak, heat, bits, BLOCK)
        level = bits.to(tl.float32, bitcast=True).to(tl.float64)
        needed = tl.ceil((wanted - reached) / level).to(tl.int64)
        taken = tl.maximum(1, tl.minimum(needed, tl.where(bits == floor, kept, equal)))
    return bits, taken


@triton.jit
def _kept(logits, at, vocab, peak, heat, bits, taken, before):
    """The masses of kept tokens, 0 elsewhere; and the number of this block's tokens at the smallest kept mass."""
    mass = _mass(logits, at, vocab, peak, heat)
    level = bits.to(tl.float32, bitcast=True)
    tie = (mass == level) & (at < vocab)
    number = before + tl.cumsum(tie.to(tl.int64), 0)
    keep = (mass > level) | (tie & (number <= taken))
    return tl.where(keep, mass, 0.0).to(tl.float64), tl.sum(tie.to(tl.int64), 0)


@triton.jit
def _pick(logits, vocab, peak, heat, coin, bits, taken, BLOCK: tl.constexpr):
    """The first token whose cumulative mass exceeds coin * total, or the last token with mass if none does."""
    total = tl.zeros((), tl.float64)
    before = tl.zeros((), tl.int64)
    last = tl.zeros((), tl.int64)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK).to(tl.int64)
        mass, ties = _kept(logits, at, vocab, peak, heat, bits, taken, before)
        total += tl.sum(mass, 0)
        before += ties
        last = tl.maximum(last, tl.max(tl.where(mass > 0, at, 0), 0))
    target = coin * total
    found = last
    level = tl.zeros((), tl.float64)
    before = tl.zeros((), tl.int64)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK).to(tl.int64)
        mass, ties = _kept(logits, at, vocab, peak, heat, bits, taken, before)
        reached = level + tl.cumsum(mass, 0)
        found = tl.minimum(found, tl.min(tl.where((reached > target) & (mass > 0), at, last), 0))
        level += tl.sum(mass, 0)
        before += ties
    return found


@triton.jit
def _peak(logits, vocab, BLOCK: tl.constexpr):
    """The largest logit and the first token that has it."""
    best = tl.full((), float("-inf"), tl.float32)
    place = tl.zeros((), tl.int64)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        here = tl.max(x, 0)
        where = first + tl.argmax(x, 0, tie_break_left=True).to(tl.int64)
        place = tl.where(here > best, where, place)
        best = tl.maximum(best, here)
    return best, place


@triton.jit
def _draw(
    logits,
    coins,
    temperature,
    top_k,
    top_p,
    out,
    width,
    vocab,
    TRUNCATE: tl.constexpr,
    BLOCK: tl.constexpr,
    MASS_BITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request = row // width
    logits += row * vocab
    heat = tl.load(temperature + request)
    peak, token = _peak(logits, vocab, BLOCK)
    if heat > 0:
        bits = tl.zeros((), tl.int32)
        taken = tl.full((), vocab, tl.int64)
        if TRUNCATE:
            k, p = tl.load(top_k + request), tl.load(top_p + request)
            if ((k > 0) & (k < vocab)) | (p < 1.0):
                bits, taken = _cut(logits, vocab, peak, heat, k, p, BLOCK, MASS_BITS)
        token = _pick(logits, vocab, peak, heat, tl.load(coins + row), bits, taken, BLOCK)
    tl.store(out + row, token)


def draw(logits: Tensor, coins: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, truncate: bool) -> Tensor:
    preconditions.contiguous("draw", logits=logits, coins=coins, temperature=temperature, top_k=top_k, top_p=top_p)
    batch, width, vocab = logits.shape
    out = torch.empty(batch, width, dtype=torch.int64, device=logits.device)
    if rows := batch * width:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        tensors = (logits, coins, temperature, top_k, top_p, out)
        _draw[(rows,)](*tensors, width, vocab, TRUNCATE=truncate, BLOCK=block, MASS_BITS=MASS_BITS, num_warps=8)
    return out
