"""KV of sliding-window layers, with their own pool, slot table and mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, count
from specmatrix.engine.device.kv_groups import GroupSlots, KVGroup
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.slot_table import SlotTable


class WindowGroup(KVGroup):
    """Layers with a sliding window of `window` tokens, the query's own included.

    Slots before a row's window may be in pages that another row owns by now; the mask hides them.
    """

    def __init__(self, pool: KVPool, table: SlotTable, window: int) -> None:
        super().__init__(pool, table)
        self.window: int = window

    def extend(self, rows: Sequence[PlanRow]) -> None:
        self.table.extend(
            [
                row._replace(pages=row.window_pages, first_page=row.window_first)
                for row in rows
                if row.window_pages or row.writers
            ]
        )

    def slots(self, batch: StepBatch) -> GroupSlots:
        read = self.table.read(batch.rows, batch.padded_kv_len)
        write = read.gather(1, batch.positions)
        return GroupSlots(read, write.masked_fill(batch.write == 0, 0))

    def attention(self, batch: StepBatch, slots: GroupSlots, bias: Tensor, positions: Tensor) -> StepAttention:
        masked = windowed_bias(bias, positions, key_positions(batch, positions), self.window)
        return StepAttention(self.pool, slots.write, slots.read, masked, sparse=True)

    def _seen(self, batch: StepBatch) -> Tensor:
        keys, start = count(batch.padded_kv_len, batch.start.device), batch.start[:, None]
        return (keys < start) & (keys > start - self.window)


def key_positions(batch: StepBatch, positions: Tensor) -> Tensor:
    """The position of each key [B, T]: its index, except in the block, where node m is at positions [B, W] [:, m]."""
    index = count(batch.padded_kv_len, positions.device).expand(len(positions), -1)
    if positions is batch.positions:
        return index
    node = index - batch.start[:, None]
    inside = (node >= 0) & (node < positions.shape[1])
    return torch.where(inside, positions.gather(1, node.clamp(0, positions.shape[1] - 1)), index)


def windowed_bias(bias: Tensor, queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """bias [B, 1, W, T] with keys at or below query position - window hidden. queries [B, W], keys [B, T] positions."""
    far = keys[:, None, :] <= queries[:, :, None] - window
    return bias.masked_fill(far[:, None], float("-inf"))
