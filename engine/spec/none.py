"""Drafter `none`: a tree of one node. Plain decoding uses the same path as speculation, with width 1."""

from __future__ import annotations

from torch import Tensor

from specmatrix.engine.core.draft.algorithms import NONE
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, shared_chain


class PlainDrafter:
    """Proposes only the root, without state."""

    traits = NONE
    nodes = 1
    depth = steps = topk = key_span = 0
    capture: tuple[int, ...] = ()
    carries: tuple[DraftStateSpec, ...] = ()

    def prime(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor) -> None:
        return None

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        return shared_chain(batch.root)

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> None:
        return None
