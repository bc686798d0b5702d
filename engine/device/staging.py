"""Host buffers for results in flight: one slot per step that may wait unread, plus the one being filled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.errors import LedgerError


class Staged(NamedTuple):
    """One step's results on their way to the host. Ready when `event` has passed (always, on a CPU)."""

    slot: int
    tensors: dict[str, Tensor]
    event: torch.cuda.Event | None


class StagingRing:
    """`lag` + 1 slots, each guarded by its step's event; a slot is reused only after it was read."""

    def __init__(self, lag: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._slots = lag + 1
        self.drop()

    def drop(self) -> None:
        """Forget the results that still wait to be read."""
        self._free = list(range(self._slots))

    def put(self, tensors: dict[str, Tensor]) -> Staged:
        """Start copying tensors to the host. Does not wait; LedgerError if every slot still waits to be read."""
        if not self._free:
            raise LedgerError("every staging slot still waits to be read")
        if not self._cuda:
            return Staged(self._free.pop(), tensors, None)
        host = {name: self._copy(tensor) for name, tensor in tensors.items()}
        event = torch.cuda.Event()
        event.record()
        return Staged(self._free.pop(), host, event)

    def take(self, staged: Staged) -> dict[str, Tensor]:
        """Wait for the copy and hand the slot back."""
        if staged.event is not None:
            staged.event.synchronize()
        self._free.append(staged.slot)
        return staged.tensors

    @staticmethod
    def _copy(tensor: Tensor) -> Tensor:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return target.copy_(tensor, non_blocking=True)
