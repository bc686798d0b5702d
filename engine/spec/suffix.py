"""Suffix decoding: each row drafts as many tokens as its suffix trees find likely, and may draft none.

Reads the host's tokens (trait reads_host), so every step is resolved before it proposes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.engine.core.draft.suffix_tree import SuffixCache, SuffixOptions
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.device.staging import integers
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, shared_chain


@dataclass(eq=False)
class SuffixDrafter:
    """Chains of up to `steps` drafts, padded to the round's width; `rows`: the most running requests."""

    traits: Traits
    options: SuffixOptions
    steps: int
    rows: int
    topk = 1
    capture: tuple[int, ...] = ()
    carries: tuple[DraftStateSpec, ...] = ()

    def __post_init__(self) -> None:
        self.nodes, self.key_span = self.steps + 1, self.traits.key_span
        self.cache = SuffixCache(self.options, self.rows)

    def prime(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor) -> None:
        return None

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> None:
        return None

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        width, device = batch.width, batch.root.device
        # The whole draft decides which of several is best, so that a row's drafts do not depend on the others' room.
        drafts = [self.cache.draft(*known, self.steps)[: width - 1] for known in batch.known]
        padded = [token for draft in drafts for token in (0, *draft, *[0] * (width - 1 - len(draft)))]
        tokens = torch.cat((batch.root, integers(padded, device).view(len(drafts), width)[:, 1:]), 1)
        return shared_chain(tokens, None, integers([1 + len(draft) for draft in drafts], device))
