"""KV of sliding-window layers: a pool, a slot table and a mask of their own, beside those of the other layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, count
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.engine.device.slot_table import SlotTable, stamp


@dataclass(frozen=True, eq=False, slots=True)
class WindowStep:
    """One step's window slots: read [B, T] of positions 0..T-1, write [B, W].

    Entries below a row's window name pages that may be another row's by now; the mask hides them.
    """

    read: Tensor
    write: Tensor


class SplitAttention:
    """Sends each layer of a step to the pool that holds its keys. routes: (windowed, index in its pool) by layer."""

    def __init__(self, full: StepAttention, windowed: StepAttention, routes: tuple[tuple[bool, int], ...]) -> None:
        self._parts = (full, windowed)
        self._routes = routes

    def kv_slots(self, layer: int) -> tuple[Tensor, Tensor] | None:
        windowed, index = self._routes[layer]
        return self._parts[windowed].kv_slots(index)

    def __call__(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        windowed, index = self._routes[layer]
        return self._parts[windowed](index, q, kv)


def split(layout: KVLayout, windows: Sequence[int | None]) -> tuple[KVLayout, KVLayout]:
    """The layouts of the layers that see everything and of the windowed ones; both kinds must exist."""
    windowed = sum(window is not None for window in windows)
    return replace(layout, layers=layout.layers - windowed), replace(layout, layers=windowed)


class WindowMemory:
    """windows: by layer, the tokens it looks back, its own included; None for all. All windowed ones have one size."""

    def __init__(self, windows: Sequence[int | None], pool: KVPool, table: SlotTable) -> None:
        self.pool = pool
        self.table = table
        (self.tokens,) = {window for window in windows if window is not None}
        counts = [0, 0]
        routes = []
        for window in windows:
            routes.append((window is not None, counts[window is not None]))
            counts[window is not None] += 1
        self.routes = tuple(routes)

    def extend(self, rows: Sequence[PlanRow]) -> None:
        """Enter the window pages that the plan added, and who writes the rows that begin a residence."""
        self.table.extend(
            [
                row._replace(pages=row.window_pages, first_page=row.window_first)
                for row in rows
                if row.window_pages or row.writers
            ]
        )

    def step(self, batch: StepBatch) -> WindowStep:
        """The window slots of a step."""
        read = self.table.read(batch.rows, batch.reach)
        write = read.gather(1, batch.positions)
        return WindowStep(read, write.masked_fill(batch.write == 0, 0))

    def beside(
        self, full: StepAttention, batch: StepBatch, step: WindowStep, bias: Tensor, positions: Tensor
    ) -> SplitAttention:
        """The attention of a step over both pools. bias [B, 1, W, T] of the full layers; positions [B, W]."""
        masked = windowed_bias(bias, positions, key_positions(batch, positions), self.tokens)
        return SplitAttention(full, StepAttention(self.pool, step.write, step.read, masked, sparse=True), self.routes)

    def move(self, step: WindowStep, taken: Tensor) -> None:
        """Compact the accepted path. taken [B, D+1]: the node whose KV goes to each of the first columns."""
        source, target = step.write.gather(1, taken), step.write[:, : taken.shape[1]]
        self.pool.move(source.flatten(), target.flatten())

    def stamp(
        self, batch: StepBatch, step: WindowStep, generations: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Stamp the slots about to be written; how many stamps in sight were compared, and how many were wrong."""
        assert self.pool.stamps is not None
        keys = count(batch.reach, positions.device)
        start = batch.start[:, None]
        seen = (keys < start) & (keys > start - self.tokens)
        wrong = (self.pool.stamps[step.read] != self.table.expected(batch.rows, batch.reach)) & seen
        self.pool.stamps[step.write.flatten()] = stamp(generations[:, None], positions).flatten()
        return seen.sum(), wrong.sum()


def key_positions(batch: StepBatch, positions: Tensor) -> Tensor:
    """The position of each key [B, T]: its index, except in the block, where node m is at positions [B, W] [:, m]."""
    index = count(batch.reach, positions.device).expand(len(positions), -1)
    if positions is batch.positions:
        return index
    node = index - batch.start[:, None]
    inside = (node >= 0) & (node < positions.shape[1])
    return torch.where(inside, positions.gather(1, node.clamp(0, positions.shape[1] - 1)), index)


def windowed_bias(bias: Tensor, queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """bias [B, 1, W, T] with keys at or below query position - window hidden. queries [B, W], keys [B, T] positions."""
    far = keys[:, None, :] <= queries[:, :, None] - window
    return bias.masked_fill(far[:, None], float("-inf"))
