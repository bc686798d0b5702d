"""Per-row values that one launched step leaves on the device for the next.

Always on, at every timing: a step's inputs never come from the host's knowledge of earlier output. Row 0 is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.device.sample import SamplingRows


class Carry(NamedTuple):
    """One tensor that a drafter takes from one round to the next: its name, its shape per request, its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


# The carried tensors of a batch by name, each [B, *shape].
DraftState: TypeAlias = Mapping[str, Tensor]


class Relay:
    """Device buffers indexed by request row.

    head [R, 2]: tokens in the target's KV, and the bonus token, known but not in KV. carried: a buffer [R, *shape]
    for each Carry of the drafter. Sampling parameters are uploaded once per residence of a request.
    """

    def __init__(self, rows: int, carries: tuple[Carry, ...], device: torch.device) -> None:
        self.head = torch.zeros(rows, 2, dtype=torch.int64, device=device)
        self.carried = {c.name: torch.zeros(rows, *c.shape, dtype=c.dtype, device=device) for c in carries}
        self.sampling = SamplingRows(
            torch.zeros(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.ones(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def publish(self, rows: Tensor, length: Tensor, last: Tensor) -> None:
        """rows [B], length [B], last [B, 1], all int64."""
        self.head.index_copy_(0, rows, torch.cat((length[:, None], last), 1))

    def lengths_and_roots(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """KV lengths [B] and bonus tokens [B, 1] of the batch."""
        head = self.head.index_select(0, rows)
        return head[:, 0], head[:, 1:]

    def stash(self, rows: Tensor, state: DraftState) -> None:
        """Keep the drafter's state of the batch, every tensor of it."""
        for name, buffer in self.carried.items():
            buffer.index_copy_(0, rows, state[name])

    def state(self, rows: Tensor) -> DraftState:
        """The drafter's state of the batch."""
        return {name: buffer.index_select(0, rows) for name, buffer in self.carried.items()}

    def sampling_of(self, rows: Tensor) -> SamplingRows:
        """The sampling parameters of the batch."""
        return SamplingRows(*(field.index_select(0, rows) for field in self.sampling))
