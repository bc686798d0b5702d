"""Attention over a step's queries, or over those of a round's drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.engine.device.pool import KVPool
from specmatrix.errors import LedgerError
from specmatrix.kernels.backend import on_triton
from specmatrix.kernels.decoder_layer import KVArrays, as_array
from specmatrix.kernels.paged_attention import ALIGNED, Reads, paged_attention, plan_reads
from specmatrix.kernels.store_kv import store_kv

if TYPE_CHECKING:
    from specmatrix.kernels.decoder_layer import Array


class StepAttention:
    """Store the step's tokens in the pool, then attend over the slots that each request reads.

    write_slots int64 [B, W]; read_slots int64 [B, T], including the written ones; bias [B, 1, W, T] of the pool's
    dtype, 0 or -inf, at least one 0 per query. sparse: most keys are masked, as by a sliding window. start int64 [B]:
    token w is at position start + w and sees no later one, with `causal` all others; None if they are not.
    """

    def __init__(
        self,
        pool: KVPool,
        write_slots: Tensor,
        read_slots: Tensor,
        bias: Tensor,
        sparse: bool = False,
        start: Tensor | None = None,
        causal: bool = False,
    ) -> None:
        self._pool = pool
        self._sparse, self._start, self.causal = sparse, start, causal
        self._write = write_slots.reshape(-1)
        self._plan = (read_slots, bias)
        self._reads: Reads | None = None
        self._arrays: tuple[Array, Array, Array] | None = None

    def arrays(self, layer: int) -> KVArrays:
        """What `CompiledLayer` reads and writes, for a pool on a CPU with separate keys and values."""
        if self._arrays is None:
            write, read, bias = (as_array(part.contiguous()) for part in (self._write, *self._plan))
            self._arrays = write, read, bias
        return KVArrays(as_array(self._pool.rows[layer]), *self._arrays)

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        if self._reads is None:
            # The first layer's queries give the number of query heads per KV head; all layers have the same shape.
            pool, layout = self._pool, self._pool.layout
            self._reads = plan_reads(
                *self._plan,
                q.shape[2],
                layout.kv_heads,
                layout.head_dim,
                pool.deterministic,
                value_dim=layout.value_dim,
                scale=layout.scale,
                sparse=self._sparse,
                start=self._start,
                causal=self.causal,
            )
        store_kv(self._pool.rows[layer], self._write, kv)
        return paged_attention(q, self._pool.heads[layer], self._reads)


def step_and_masks(
    pool: KVPool, write_slots: Tensor, read_slots: Tensor, bias: Tensor, prefix_bias: Tensor, masks: int
) -> StepAttention:
    """Attention for a step's tokens, as of `StepAttention`, and for `masks` tokens behind them, in spare slots.

    prefix_bias [B, 1, 1, T]: what all masks of a request see of read_slots; each also sees those up to itself.
    LedgerError if the pool has fewer spare slots.
    """
    batch, length = read_slots.shape
    own = spare_slots(pool, batch, masks)
    hidden = -(length + masks) % ALIGNED if on_triton(pool.data) else 0
    seen = torch.ones(masks, masks, dtype=torch.bool, device=bias.device).tril()
    among = bias.new_zeros(masks, masks).masked_fill_(~seen, float("-inf")).expand(batch, 1, -1, -1)
    tokens = pad(bias, (0, masks), value=float("-inf"))
    whole = torch.cat((tokens, torch.cat((prefix_bias.expand(-1, -1, masks, -1), among), 3)), 2)
    slots = pad(torch.cat((read_slots, own), 1), (0, hidden))
    return StepAttention(pool, torch.cat((write_slots, own), 1), slots, pad(whole, (0, hidden), value=float("-inf")))


def spare_slots(pool: KVPool, batch: int, capacity: int) -> Tensor:
    """Slots [B, capacity] of a pool that belong to no page. LedgerError if it has fewer."""
    if batch * capacity > len(pool.spare):
        raise LedgerError(
            f"{batch} requests draft {capacity} tokens each, but the pool has {len(pool.spare)} spare slots"
        )
    return pool.spare[: batch * capacity].view(batch, capacity)


class DraftAttention:
    """Attention for the beams of one drafting round: the committed prefix in the pool, and drafted tokens in its spare
    slots.

    read_slots int64 [B, T] and prefix_bias [B, 1, 1, T]: the prefix, the same for all beams. capacity: drafted tokens
    that one round can write. No page is written: the extend after verification writes the accepted tokens' KV.
    LedgerError if the pool has fewer spare slots.
    """

    def __init__(self, pool: KVPool, read_slots: Tensor, prefix_bias: Tensor, capacity: int) -> None:
        batch, self._prefix = read_slots.shape
        self._pool = pool
        self._own = spare_slots(pool, batch, capacity)
        length = self._prefix + capacity
        masked = -length % ALIGNED if on_triton(pool.data) else 0
        self._slots = pad(torch.cat((read_slots, self._own), 1), (0, masked))
        self._bias = pad(prefix_bias, (0, capacity + masked), value=float("-inf"))

    def begin(self, offset: int, ancestors: Tensor | None = None) -> None:
        """Call before each forward, whose K tokens per request use scratch columns offset..offset+K-1.

        ancestors bool [B, K, offset + K]: the columns that each beam may see, its own included; None for a chain, a
        single beam that sees its own and all earlier columns.
        """
        beams = 1 if ancestors is None else ancestors.shape[1]
        if self._bias.shape[2] != beams:
            self._bias = self._bias[:, :, :1].repeat(1, 1, beams, 1)
        scratch = self._bias[:, 0, :, self._prefix : self._prefix + offset + beams].zero_()
        if ancestors is not None:
            scratch.masked_fill_(~ancestors, float("-inf"))
        write = self._own[:, offset : offset + beams].contiguous()
        self._step = StepAttention(self._pool, write, self._slots, self._bias)

    def arrays(self, layer: int) -> KVArrays:
        """What `CompiledLayer` reads and writes."""
        return self._step.arrays(layer)

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        return self._step(layer, q, kv)
