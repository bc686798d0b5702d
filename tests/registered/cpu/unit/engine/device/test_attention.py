"""Attention of a step and of a drafting round, against plain attention over the same tokens."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from specmatrix.engine.device.attention import DraftAttention, StepAttention
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.errors import LedgerError
from specmatrix.kernels.backend import check_interpreter, interpreted

check_interpreter()

HEADS, KV_HEADS, DIM = 6, 2, 8


@pytest.fixture
def tokens():
    """q, k, v of 3 requests of 20 tokens; k and v as rows of the pool too."""
    g = torch.Generator().manual_seed(0)
    q = torch.randn(3, 20, HEADS, DIM, generator=g)
    k, v = torch.randn(2, 3, 20, KV_HEADS, DIM, generator=g)
    return q, k, v, torch.cat((k.flatten(2), v.flatten(2)), 2)


@pytest.fixture
def pool():
    """Page size 4; request r owns pages 1 + 5 r .. 5 + 5 r, in reverse; 18 spare slots."""
    return KVPool(KVLayout(2, KV_HEADS, DIM), 16, 4, torch.float32, "cpu", spare=3 * 6)


SLOTS = torch.stack([(torch.arange(5 + 5 * r, 5 * r, -1)[:, None] * 4 + torch.arange(4)).flatten() for r in range(3)])


def plain(q, k, v, seen):
    """softmax attention of q [W, HEADS, DIM] over k, v [T, KV_HEADS, DIM] with seen bool [W, T]."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("whd,thd->hwt", q, k) / DIM**0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hwt,thd->whd", weights, v).flatten(1)


@pytest.fixture(params=["torch", "interpreted"])
def drafted(request, pool):
    """The pool, on each backend."""
    with interpreted() if request.param == "interpreted" else nullcontext():
        yield pool


def bias_of(seen):
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_step_stores_then_attends(tokens, pool, deterministic):
    q, k, v, kv = tokens
    pool.deterministic = deterministic
    starts, width = [0, 7, 16], 4
    for r, start in enumerate(starts):
        pool.store(1, SLOTS[r, :start], kv[r, :start])
    new = [slice(s, s + width) for s in starts]
    seen = torch.stack([torch.ones(width, 20).tril(s).bool() for s in starts])
    write = torch.stack([SLOTS[r, new[r]] for r in range(3)])
    attend = StepAttention(pool, write, SLOTS, bias_of(seen)[:, None])
    out = attend(1, torch.stack([q[r, new[r]] for r in range(3)]), torch.cat([kv[r, new[r]] for r in range(3)]))
    out = out.view(3, width, -1)
    for r, start in enumerate(starts):
        assert torch.equal(pool.rows[1][SLOTS[r, new[r]]], kv[r, new[r]])
        torch.testing.assert_close(out[r], plain(q[r, new[r]], k[r], v[r], seen[r]))
        assert not pool.rows[1][SLOTS[r, start + width :]].any()
    assert not pool.data[0].any()


def prefix(pool, tokens, lengths):
    kv = tokens[3]
    for layer in (0, 1):
        for r, length in enumerate(lengths):
            pool.store(layer, SLOTS[r, :length], kv[r, :length])
    return bias_of(torch.arange(12) < torch.tensor(lengths)[:, None])[:, None, None]


@pytest.mark.parametrize("layer", [0, 1])
def test_a_drafted_chain_sees_the_prefix_and_itself(tokens, drafted, layer):
    q, k, v, kv = tokens
    pool = drafted
    lengths = [3, 12, 8]
    attend = DraftAttention(pool, SLOTS[:, :12], prefix(pool, tokens, lengths), capacity=4)
    before = pool.data.clone()
    for step in range(4):
        attend.begin(step)
        now = [n + step for n in lengths]
        out = attend(
            layer,
            torch.stack([q[r, [n]] for r, n in enumerate(now)]),
            torch.stack([kv[r, n] for r, n in enumerate(now)]),
        )
        for r, n in enumerate(now):
            torch.testing.assert_close(
                out[r : r + 1], plain(q[r, [n]], k[r, : n + 1], v[r, : n + 1], torch.ones(1, n + 1).bool())
            )
    assert torch.equal(pool.data[:, :64], before[:, :64])


def test_beams_see_the_prefix_and_their_own_ancestors_only(tokens, drafted):
    """Two beams; at the second step both descend from beam 1, at the third they part."""
    q, k, v, kv = tokens
    pool = drafted
    lengths = [3, 12, 8]
    attend = DraftAttention(pool, SLOTS[:, :12], prefix(pool, tokens, lengths), capacity=6)
    paths = [[[0], [1]], [[1, 2], [1, 3]], [[1, 3, 4], [1, 2, 5]]]
    for step, beams in enumerate(paths):
        ancestors = torch.zeros(3, 2, 2 * step + 2, dtype=torch.bool)
        for beam, path in enumerate(beams):
            ancestors[:, beam, path] = True
        attend.begin(2 * step, ancestors)
        new = [slice(n + 2 * step, n + 2 * step + 2) for n in lengths]
        out = attend(
            0, torch.stack([q[r, s] for r, s in enumerate(new)]), torch.cat([kv[r, s] for r, s in enumerate(new)])
        )
        for r, n in enumerate(lengths):
            columns = torch.cat((torch.ones(3, 2, n).bool(), ancestors), 2)[r]
            end = n + 2 * step + 2
            torch.testing.assert_close(out[2 * r : 2 * r + 2], plain(q[r, new[r]], k[r, :end], v[r, :end], columns))


def test_drafts_need_as_many_spare_slots_as_they_may_take():
    pool = KVPool(KVLayout(1, KV_HEADS, DIM), 16, 4, torch.float32, "cpu", spare=5)
    wanted = "2 requests draft 3 tokens each, but the pool has 5 spare slots"
    with pytest.raises(LedgerError, match=f"^{wanted}$"):
        DraftAttention(pool, SLOTS[:2, :12], torch.zeros(2, 1, 1, 12), capacity=3)


LATENT = KVLayout(1, 1, DIM, value_dim=5, scale=0.4)


def plain_latent(q, rows, seen):
    """Attention of q [W, HEADS, DIM] over one row per token [T, DIM], whose first 5 columns are the value."""
    scores = torch.einsum("whd,td->hwt", q, rows) * 0.4
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hwt,td->whd", weights, rows[:, :5]).flatten(1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_latent_step_reads_one_row_per_token(tokens, deterministic):
    q, rows = tokens[0][:1], tokens[1][0, :, 0]
    pool = KVPool(LATENT, 16, 4, torch.float32, "cpu", deterministic=deterministic)
    pool.store(0, SLOTS[0, :16], rows[:16])
    seen = torch.ones(4, 20).tril(16).bool()
    attend = StepAttention(pool, SLOTS[:1, 16:], SLOTS[:1], bias_of(seen)[None, None])
    torch.testing.assert_close(attend(0, q[:, 16:], rows[16:]), plain_latent(q[0, 16:], rows, seen))
