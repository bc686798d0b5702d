"""Per-row values that one launched step leaves on the device for the next.

Always on, at every timing: a step's inputs never come from the host's knowledge of earlier output. Row 0 is padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.device.sample import SamplingRows


class DraftState(NamedTuple):
    """What a drafter carries from one round to the next, one line per request of the batch.

    ids [B, k] int64 target-vocabulary proposals for depth 1, best first; probs [B, k] float32 their probabilities;
    hidden [B, C] the stream behind them (C = 0 for a drafter that carries none).
    """

    ids: Tensor
    probs: Tensor
    hidden: Tensor


class Relay:
    """Device buffers indexed by request row.

    length [R]: tokens in the target's KV. last [R]: the bonus token, known but not in KV. Sampling parameters are
    uploaded once per residence of a request.
    """

    def __init__(self, rows: int, topk: int, carry: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=device)
        self.ids = torch.zeros(rows, topk, dtype=torch.int64, device=device)
        self.probs = torch.zeros(rows, topk, dtype=torch.float32, device=device)
        self.hidden = torch.zeros(rows, carry, dtype=dtype, device=device)
        self.sampling = SamplingRows(
            torch.zeros(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.ones(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def publish(self, rows: Tensor, length: Tensor, last: Tensor) -> None:
        """rows, length, last: [B] int64."""
        self.length.index_copy_(0, rows, length)
        self.last.index_copy_(0, rows, last)

    def stash(self, rows: Tensor, state: DraftState) -> None:
        """Keep the drafter's state of the batch."""
        self.ids.index_copy_(0, rows, state.ids)
        self.probs.index_copy_(0, rows, state.probs)
        self.hidden.index_copy_(0, rows, state.hidden)

    def state(self, rows: Tensor) -> DraftState:
        """The drafter's state of the batch."""
        return DraftState(
            self.ids.index_select(0, rows), self.probs.index_select(0, rows), self.hidden.index_select(0, rows)
        )

    def sampling_of(self, rows: Tensor) -> SamplingRows:
        """The sampling parameters of the batch."""
        return SamplingRows(*(field.index_select(0, rows) for field in self.sampling))
