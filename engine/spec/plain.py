"""Drafter `none`: a tree of one node. Plain decoding is the same path as speculation, one node wide."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.core.algorithm import NONE
from engine.device.batch import StepBatch
from engine.device.relay import DraftState
from engine.spec.drafter import DraftTree, Verdict, chain


class PlainDrafter:
    """Proposes the root alone and carries nothing."""

    traits = NONE
    nodes = 1
    depth = 0
    capture: tuple[int, ...] = ()
    topk = 0
    carry = 0

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState:
        return self._nothing(batch)

    def propose(self, batch: StepBatch, root: Tensor, state: DraftState) -> DraftTree:
        return chain(root[:, None])

    def absorb(self, batch: StepBatch, verdict: Verdict, aux: Tensor | None) -> DraftState:
        return self._nothing(batch)

    @staticmethod
    def _nothing(batch: StepBatch) -> DraftState:
        empty = torch.empty(batch.rows.shape[0], 0, device=batch.rows.device)
        return DraftState(empty.long(), empty, empty)
