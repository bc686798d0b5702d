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

    head [R, 2]: tokens in the target's KV, and the bonus token, known but not in KV. Sampling parameters are uploaded
    once per residence of a request.
    """

    def __init__(self, rows: int, topk: int, carry: int, dtype: torch.dtype, device: torch.device) -> None:
        self.head = torch.zeros(rows, 2, dtype=torch.int64, device=device)
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
        """rows [B], length [B], last [B, 1], all int64."""
        self.head.index_copy_(0, rows, torch.cat((length[:, None], last), 1))

    def lengths_and_roots(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """KV lengths [B] and bonus tokens [B, 1] of the batch."""
        head = self.head.index_select(0, rows)
        return head[:, 0], head[:, 1:]

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
