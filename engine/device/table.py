"""The device's view of who owns which KV slot: request row x position -> slot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import torch
from torch import Tensor

from engine.core.plan import PlanRow
from engine.device.upload import integers

READ_STEP: Final = 16
# Pages that are entered one by one, each by an operation that needs no upload.
FEW: Final = 3


class SlotTable:
    """slots [R, positions] int64; 0 (the padding page) where a row owns nothing.

    With `stamps`, `writers` [R, positions] holds the account that must have written the position.
    """

    def __init__(self, rows: int, positions: int, page_size: int, device: torch.device, stamps: bool) -> None:
        self.page_size, self.positions = page_size, positions
        self.slots = torch.zeros(rows, positions, dtype=torch.int64, device=device)
        self.writers = torch.zeros_like(self.slots) if stamps else None
        self._cells, self._stride, self._device = self.slots.view(-1), positions, device
        self._prefixes: dict[int, Tensor] = {}

    def extend(self, rows: Sequence[PlanRow]) -> None:
        """Enter the pages that the plan added."""
        size, stride = self.page_size, self._stride
        added = [row for row in rows if row.pages]
        if sum([len(row.pages) for row in added]) <= FEW:
            for row in added:
                first = row.row * stride + row.first_page * size
                for number, (page, writer) in enumerate(zip(row.pages, row.writers, strict=True)):
                    self._enter(first + number * size, page, writer)
            return
        cells: list[int] = []
        slots: list[int] = []
        for row in added:
            first = row.row * stride + row.first_page * size
            cells.extend(range(first, first + len(row.pages) * size))
            if size == 1:
                slots.extend(row.pages)
            else:
                for page in row.pages:
                    slots.extend(range(page * size, page * size + size))
        writers = () if self.writers is None else (by for row in added for by in row.writers for _ in range(size))
        # In one upload: each costs the device a pause.
        at, slot, *writer = integers(chain(cells, slots, writers), self._device).view(-1, len(cells))
        self._cells.index_copy_(0, at, slot)
        if self.writers is not None:
            self.writers.view(-1).index_copy_(0, at, writer[0])

    def _enter(self, cell: int, page: int, writer: int) -> None:
        """One page, from `cell` of the flat table on."""
        size = self.page_size
        torch.arange(page * size, page * size + size, out=self._cells[cell : cell + size])
        if self.writers is not None:
            self.writers.view(-1)[cell : cell + size] = writer

    def reach(self, bound: int) -> int:
        """How many positions a step reads whose rows end below `bound`: rounded up, so that its shapes come back."""
        return min(-(-bound // READ_STEP) * READ_STEP, self._stride)

    def read(self, rows: Tensor, length: int) -> Tensor:
        """Slots of positions 0..length-1: [B, length]."""
        prefix = self._prefixes.get(length)
        if prefix is None:
            prefix = self._prefixes[length] = self.slots[:, :length]
        return prefix.index_select(0, rows)

    def expected(self, rows: Tensor, length: int) -> Tensor:
        """Stamps that positions 0..length-1 must hold: [B, length] int64."""
        assert self.writers is not None
        position = torch.arange(length, device=self.slots.device)
        return stamp(self.writers[:, :length].index_select(0, rows), position)


def stamp(writer: Tensor, position: Tensor) -> Tensor:
    """One int64 for (account, position); broadcasts."""
    return (writer << 32) | position
