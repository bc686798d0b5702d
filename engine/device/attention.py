"""How one step's queries reach their keys: through the pool, or through the pool and a round's scratch."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.device.pool import KVPool
from kernels.paged_attention import attend, gather, paged_attention, plan_reads
from kernels.paged_attention.eager import spread_bias
from kernels.store_kv import store_kv


class StepAttention:
    """Store the step's tokens in the pool, then attend over the slots that each request reads.

    write_slots int64 [B, W]; read_slots int64 [B, T], the written ones among them; bias [B, 1, W, T] of the pool's
    dtype, 0 or -inf, at least one 0 per query; heads: query heads.
    """

    def __init__(self, pool: KVPool, heads: int, write_slots: Tensor, read_slots: Tensor, bias: Tensor) -> None:
        self._pool = pool
        self._write = write_slots.reshape(-1)
        self._shape = (self._write.shape[0], 2 * pool.kv_heads * pool.head_dim)
        self._reads = plan_reads(read_slots, bias, heads, pool.kv_heads, pool.head_dim)

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        store_kv(self._pool.rows[layer], self._write, kv.view(self._shape))
        return paged_attention(q, self._pool.heads[layer], self._reads)


class DraftAttention:
    """Beams of one drafting round: the committed prefix from the pool, read once, and scratch for the drafted tokens.

    read_slots int64 [B, T] and prefix_bias [B, 1, 1, T]: the prefix, the same for all beams. capacity: drafted tokens
    that one round can write. Nothing goes back to the pool: the extend after verification writes the accepted tokens.
    """

    def __init__(self, pool: KVPool, heads: int, read_slots: Tensor, prefix_bias: Tensor, capacity: int) -> None:
        self._pool = pool
        self._heads = heads
        self._length = read_slots.shape[1]
        self._capacity = capacity
        # Scratch columns read the padding slot, so one gather also allocates them and all of it is finite.
        slots = torch.nn.functional.pad(read_slots, (0, capacity))
        self._bias = torch.nn.functional.pad(prefix_bias, (0, capacity), value=float("-inf"))
        self._reads = plan_reads(slots, self._bias, heads, pool.kv_heads, pool.head_dim)
        self._buffers: dict[int, Tensor] = {}
        self._wide: dict[int, Tensor] = {}
        self._at = 0

    def begin(self, offset: int, beams: int, ancestors: Tensor | None = None) -> None:
        """Before each forward of `beams` tokens per request, which take scratch columns offset..offset+beams-1.

        ancestors bool [B, beams, offset + beams]: scratch columns that a beam may see, itself included; None for a
        chain (one beam, which sees every earlier one).
        """
        self._at = offset
        if beams not in self._wide:
            self._wide[beams] = self._bias.expand(-1, -1, beams, -1).contiguous()
        bias = self._wide[beams]
        scratch = bias[:, 0, :, self._length : self._length + offset + beams]
        if ancestors is None:
            scratch.zero_()
        else:
            scratch.zero_().masked_fill_(~ancestors, float("-inf"))
        self._rows = spread_bias(bias, self._heads, self._pool.kv_heads)

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        buffer = self._buffers.get(layer)
        if buffer is None:
            buffer = self._buffers[layer] = gather(self._pool.heads[layer], self._reads)
        batch, beams = kv.shape[:2]
        first = self._length + self._at
        keys, values = buffer.unbind()
        columns = buffer.view(2, batch, self._pool.kv_heads, -1, self._pool.head_dim)[:, :, :, first : first + beams]
        columns.copy_(kv.permute(2, 0, 3, 1, 4))
        return attend(q, self._pool.kv_heads, keys, values, self._rows)
