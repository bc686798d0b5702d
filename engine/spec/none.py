"""Drafter `none`: a tree of one node. Plain decoding uses the same path as speculation, with width 1."""

from __future__ import annotations

from torch import Tensor

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, shared_chain


class StatelessDrafter:
    """A drafter without a network: it reads nothing of the target's and leaves no state for the next round."""

    capture: tuple[int, ...] = ()
    carries: tuple[DraftStateSpec, ...] = ()
    key_span = 0

    def prime(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor) -> None:
        return None

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> None:
        return None


class PlainDrafter(StatelessDrafter):
    """Proposes only the root."""

    traits = algorithm("NONE")
    nodes = 1
    depth = steps = topk = 0

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        return shared_chain(batch.root)
