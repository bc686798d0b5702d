"""Attention over a step's queries: from the KV pool, or from the pool and a round's scratch KV."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.engine.device.pool import KVPool
from specmatrix.errors import LedgerError
from specmatrix.kernels.paged_attention import (
    ALIGNED,
    Reads,
    attend,
    paged_attention,
    plan_reads,
    spread_bias,
    spread_slots,
)
from specmatrix.kernels.store_kv import store_kv


class StepAttention:
    """Store the step's tokens in the pool, then attend over the slots that each request reads.

    write_slots int64 [B, W]; read_slots int64 [B, T], including the written ones; bias [B, 1, W, T] of the pool's
    dtype, 0 or -inf, at least one 0 per query. sparse: most keys are masked, as by a sliding window. start int64 [B]:
    the step's tokens are at positions start..start + W - 1, so no query sees a later position; None if they are not.
    """

    def __init__(
        self,
        pool: KVPool,
        write_slots: Tensor,
        read_slots: Tensor,
        bias: Tensor,
        sparse: bool = False,
        start: Tensor | None = None,
    ) -> None:
        self._pool = pool
        self._sparse, self._start = sparse, start
        self._write = write_slots.reshape(-1)
        self._plan = (read_slots, bias)
        self._reads: Reads | None = None

    def kv_slots(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """The pool's rows [S, planes * kv_heads * head_dim], and the slots [B * W] to store to."""
        return self._pool.rows[layer], self._write

    def __call__(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
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
            )
        if kv is not None:
            store_kv(self._pool.rows[layer], self._write, kv)
        return paged_attention(q, self._pool.heads[layer], self._reads)


class DraftAttention:
    """Attention for the beams of one drafting round: the committed prefix in the pool, and scratch KV for drafted
    tokens.

    read_slots int64 [B, T] and prefix_bias [B, 1, 1, T]: the prefix, the same for all beams. capacity: drafted tokens
    that one round can write. No page is written: the extend after verification writes the accepted tokens' KV.
    """

    def __init__(self, pool: KVPool, read_slots: Tensor, prefix_bias: Tensor, capacity: int) -> None:
        self._prefix = read_slots.shape[1]
        kind = _Gathered if pool.spare is None else _InPlace
        self._keys = kind(pool, read_slots, capacity)
        self._bias = pad(prefix_bias, (0, self._keys.length - self._prefix), value=float("-inf"))

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
        self._keys.begin(self._bias, offset)

    def kv_slots(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Where a layer's keys and values are stored, None if the layer's scratch is allocated on its first call."""
        return self._keys.kv_slots(layer)

    def __call__(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        return self._keys(layer, q, kv)


class _InPlace:
    """Reads KV in place; drafted tokens are in the pool's spare slots. length: columns to mask."""

    def __init__(self, pool: KVPool, read_slots: Tensor, capacity: int) -> None:
        assert pool.spare is not None
        batch, prefix = read_slots.shape
        if batch * capacity > len(pool.spare):
            raise LedgerError(
                f"{batch} requests draft {capacity} tokens each, but the pool has {len(pool.spare)} spare slots"
            )
        self._pool = pool
        self._own = pool.spare[: batch * capacity].view(batch, capacity)
        self.length = -(-(prefix + capacity) // ALIGNED) * ALIGNED
        self._slots = pad(torch.cat((read_slots, self._own), 1), (0, self.length - prefix - capacity))

    def begin(self, bias: Tensor, offset: int) -> None:
        write = self._own[:, offset : offset + bias.shape[2]].contiguous()
        self._step = StepAttention(self._pool, write, self._slots, bias)

    def kv_slots(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return self._step.kv_slots(layer)

    def __call__(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        return self._step(layer, q, kv)


class _Gathered:
    """Copies each layer's prefix once, with room for drafted tokens: faster where memory is fast. length: columns."""

    def __init__(self, pool: KVPool, read_slots: Tensor, capacity: int) -> None:
        self._pool = pool
        self._prefix = read_slots.shape[1]
        self.length = self._prefix + capacity
        # Scratch columns gather the padding slot: the same gather then allocates them, with finite values.
        kv = pool.layout
        self._where = spread_slots(pad(read_slots, (0, capacity)), kv.kv_heads, kv.planes)
        self._shape = (kv.planes, read_slots.shape[0] * kv.kv_heads, self.length, kv.head_dim)
        self._by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        self._bias: Tensor | None = None
        self._spread: Tensor | None = None
        self._offset = 0

    def begin(self, bias: Tensor, offset: int) -> None:
        self._bias, self._offset, self._spread = bias, offset, None

    def kv_slots(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return None

    def __call__(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        assert kv is not None and self._bias is not None
        layout = self._pool.layout
        if self._spread is None:
            self._spread = spread_bias(self._bias, q.shape[2], layout.kv_heads)
        if layer not in self._by_layer:
            self._by_layer[layer] = self._gather(layer)
        columns, read = self._by_layer[layer]
        first = self._prefix + self._offset
        batch, beams = q.shape[:2]
        columns[:, first : first + beams] = kv.view(batch, beams, layout.planes, layout.kv_heads, layout.head_dim)
        # The bits of draft KV affect only the proposals, not the output.
        return attend(q, layout.kv_heads, layout.factor, read, layout.value_dim, self._spread)

    def _gather(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's prefix and scratch: as columns [B, T + capacity, planes, kv_heads, head_dim] to write to, and in
        the layout that `attend` reads."""
        pool = self._pool
        layout = pool.layout
        read = pool.heads[layer].index_select(0, self._where).view(self._shape)
        split = read.view(layout.planes, -1, layout.kv_heads, *self._shape[2:])
        return split.permute(1, 3, 0, 2, 4), read
