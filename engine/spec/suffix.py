"""Suffix decoding: each row drafts as many tokens as its suffix trees find likely, and may draft none.

Reads the host's tokens (trait reads_host), so every step is resolved before it proposes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.engine.core.draft.suffix_cache import SuffixCache, SuffixOptions
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.staging import integers
from specmatrix.engine.spec.drafter import DraftTree, shared_chain
from specmatrix.engine.spec.none import StatelessDrafter


@dataclass(eq=False)
class SuffixDrafter(StatelessDrafter):
    """Chains of up to `steps` drafts, padded to the longest of the round; `rows`: the most running requests."""

    traits: Traits
    options: SuffixOptions
    steps: int
    rows: int
    topk = 1

    def __post_init__(self) -> None:
        self.nodes = self.steps + 1
        self.cache = SuffixCache(self.options, self.rows)
        self.readers, self.forget = self.cache.readers, self.cache.forget

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        # The whole draft decides which of several is best, so that a row's drafts do not depend on its room.
        drafts = [self.cache.draft(*text, self.steps)[: nodes - 1] for *text, nodes in batch.known]
        batch.narrow(width := 1 + max(map(len, drafts)))
        device = batch.root.device
        padded = [token for draft in drafts for token in (0, *draft, *[0] * (width - 1 - len(draft)))]
        tokens = torch.cat((batch.root, integers(padded, device).view(len(drafts), width)[:, 1:]), 1)
        return shared_chain(tokens, None, integers([1 + len(draft) for draft in drafts], device))
