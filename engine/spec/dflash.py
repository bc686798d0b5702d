"""DFLASH's drafter: committed positions are projected into draft KV, and one block forward drafts a whole chain.

Draft KV slot p is computed from the target's states at position p only, not from later tokens. The block, the bonus
token at position start and the mask tokens after it, attends to all slots below start and to itself, bidirectionally.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.engine.device.attention import DraftAttention
from specmatrix.engine.device.batch import StepBatch, count, prefix_bias
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.device.sampling import drawn_drafts
from specmatrix.engine.models.dflash.model import DFlash
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, confidence, confident_nodes, shared_chain


class BlockDrafter:
    """Chains of batch.width - 1 drafts, each the argmax or a draw at its own mask position."""

    steps = topk = 1
    carries: tuple[DraftStateSpec, ...] = ()

    def __init__(
        self, traits: Traits, model: DFlash, pool: KVPool, nodes: int, draws: bool = False, threshold: float = 0.0
    ) -> None:
        self.traits, self.model, self.pool, self.nodes = traits, model, pool, nodes
        self.draws, self.threshold = draws, threshold
        self.capture = model.aux_layers
        self.key_span = traits.key_span

    def prime(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor) -> None:
        self._keep(batch, aux)

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> None:
        # Rows at and past `count` write KV that the next round overwrites before it is read.
        self._keep(batch, aux)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        width, padded_kv_len = batch.width, batch.padded_kv_len - batch.width
        if width == 1:
            return shared_chain(batch.root)
        masks = batch.root.new_full((len(batch.root), width - 1), self.model.mask_token)
        bias = prefix_bias(batch.start, padded_kv_len, self.pool.data.dtype)
        attend = DraftAttention(self.pool, batch.slots[:, :padded_kv_len], bias, width)
        everything = torch.ones(len(batch.root), width, width, dtype=torch.bool, device=batch.root.device)
        attend.begin(0, everything)
        out = self.model.forward(torch.cat((batch.root, masks), 1), batch.positions, attend)
        logits, rows = self.model.logits(out[:, 1:]), batch.sampling if self.draws else None
        lengths = confident_nodes(confidence(logits), self.threshold) if self.threshold else None
        if rows is None:
            return shared_chain(torch.cat((batch.root, logits.argmax(-1)), 1), None, lengths)
        drafts, q = drawn_drafts(logits, batch.start, count(width, batch.root.device)[1:], rows)
        return shared_chain(torch.cat((batch.root, drafts), 1), q, lengths)

    def _keep(self, batch: StepBatch, aux: Tensor | None) -> None:
        """Store the KV of every position of the step. aux: [B, W, states]."""
        assert aux is not None
        write = batch.write.reshape(-1)
        for layer, kv in enumerate(self.model.context(aux, batch.positions)):
            self.pool.store(layer, write, kv)
