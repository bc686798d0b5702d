"""The device's page table: request row x position -> slot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.staging import integers

READ_STEP: Final = 16
# Up to this many pages are entered one by one, each by an operation that needs no upload.
FEW: Final = 3


class SlotTable:
    """slots [R, positions] int64; 0 (the padding page) where a row owns nothing.

    With `stamps`, `writers` [R, positions] holds the generation that must have written each position.
    """

    def __init__(self, rows: int, positions: int, page_size: int, device: torch.device, stamps: bool) -> None:
        self.page_size, self.positions = page_size, positions
        self.slots = torch.zeros(rows, positions, dtype=torch.int64, device=device)
        self.writers = torch.zeros_like(self.slots) if stamps else None
        self._cells, self._stride, self._device = self.slots.view(-1), positions, device
        self._prefixes: dict[int, Tensor] = {}

    def extend(self, rows: Sequence[PlanRow], group: int = 0) -> None:
        """Enter the pages of a KV group that the plan added, and the writers of rows that begin a residence."""
        size, stride = self.page_size, self._stride
        if self.writers is not None:
            for row in rows:
                for position, generation in row.writers:
                    self.writers[row.row, position:] = generation
        new = [(row.row, *row.pages[group]) for row in rows if row.pages]
        added = [(row * stride + first * size, pages) for row, first, pages in new]
        if sum([len(pages) for _, pages in added]) <= FEW:
            for cell, pages in added:
                for number, page in enumerate(pages):
                    self._enter(cell + number * size, page)
            return
        cells: list[int] = []
        slots: list[int] = []
        for cell, pages in added:
            cells.extend(range(cell, cell + len(pages) * size))
            if size == 1:
                slots.extend(pages)
            else:
                for page in pages:
                    slots.extend(range(page * size, page * size + size))
        # In a single upload, because each upload stalls the device.
        at, slot = integers(chain(cells, slots), self._device).view(2, -1)
        self._cells.index_copy_(0, at, slot)

    def _enter(self, cell: int, page: int) -> None:
        """Enter one page, starting at `cell` of the flattened table."""
        size = self.page_size
        torch.arange(page * size, page * size + size, out=self._cells[cell : cell + size])

    def pad_kv_len(self, bound: int) -> int:
        """How many positions a step reads for rows that end below `bound`, rounded up so that shapes recur."""
        return min(-(-bound // READ_STEP) * READ_STEP, self._stride)

    def read(self, rows: Tensor, length: int) -> Tensor:
        """Slots of positions 0..length-1: [B, length]."""
        prefix = self._prefixes.get(length)
        if prefix is None:
            prefix = self._prefixes[length] = self.slots[:, :length]
        return prefix.index_select(0, rows)

    def expected(self, rows: Tensor, length: int) -> Tensor:
        """Stamps that positions 0..length-1 must have: [B, length] int64."""
        assert self.writers is not None
        position = torch.arange(length, device=self.slots.device)
        return stamp(self.writers[:, :length].index_select(0, rows), position)


def stamp(writer: Tensor, position: Tensor) -> Tensor:
    """One int64 for (generation, position); broadcasts."""
    return (writer << 32) | position
