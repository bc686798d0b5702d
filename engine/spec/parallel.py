"""The drafter of drafts that predict all steps in one forward: P-EAGLE (arXiv 2602.01469), PARD (arXiv 2504.18583).

Draft KV slot p holds what an autoregressive draft of the same kind holds. The extend that fills the slots below the new
length L also runs steps - 1 mask tokens per request, at positions L, L + 1, ..., each of which sees slots below L and
the mask tokens up to itself; the row of slot L - 1 and these predict the next round's drafts. The masks' KV is in spare
slots and discarded, as the next extend knows the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specmatrix.engine.device.attention import step_and_masks
from specmatrix.engine.device.batch import StepBatch, count, prefix_bias
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.models.layers import Masks
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.engine.spec.drafter import DraftTree, confidence, confident_nodes, followed, shared_chain
from specmatrix.kernels.argmax import argmax


@dataclass(eq=False)
class ParallelDrafter(AutoregressiveDrafter):
    """Chains of up to `steps` drafts, all computed by the previous extend. masks: of the model. positions: how many the
    model has; only requests past their end would use later ones."""

    masks: Masks = (0, None)
    positions: int = 0
    parallel = True

    @property
    def _late(self) -> bool:
        """Whether the round that verifies drafts chooses them, each after the one before it."""
        return self.draws or self.constrained or self.threshold > 0

    def _carries(self, width: int) -> tuple[DraftStateSpec, ...]:
        """ids [steps], the next round's drafts, or the logits [steps, draft vocabulary] to choose them from."""
        if self._late:
            return (DraftStateSpec("scores", (self.steps, self.model.vocab_size), torch.float32),)
        return (DraftStateSpec("ids", (self.steps,), torch.int64),)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        drafts, state = batch.width - 1, relay.state(batch.rows)
        if not self._late:
            return shared_chain(torch.cat((batch.root, state["ids"][:, :drafts]), 1))
        rows = batch.sampling if self.draws else None
        grammar = batch.grammar if self.constrained else None
        states = None if grammar is None else grammar.state[:, None]
        tokens, laws, sure = [batch.root], [], []
        for column in range(drafts):
            logits = self._legal(state["scores"][:, column : column + 1].contiguous(), grammar, states)
            token, law = self._drawn(logits, batch, column + 1, rows)
            states = followed(grammar, states, token)
            tokens.append(token)
            laws += [] if law is None else [law]
            sure += [confidence(logits)] if self.threshold else []
        lengths = confident_nodes(torch.cat(sure, 1), self.threshold) if sure else None
        return shared_chain(torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None, lengths)

    def _extend(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, kept: Tensor) -> DraftState:
        """Write draft KV for `tokens` [B, W] from start on, and predict all steps behind row kept - 1."""
        (batch_size, width), masks = tokens.shape, self.steps - 1
        token, state = self.masks
        ahead, end = count(masks, tokens.device), batch.start + kept
        positions, write, bias = batch.causal(width, self.pool.data.dtype)
        seen = prefix_bias(end, batch.padded_kv_len, bias.dtype)
        attend = step_and_masks(self.pool, write, batch.slots, bias, seen, masks)
        places = (end[:, None] + ahead).clamp(max=self.positions - 1)
        words = torch.cat((tokens, tokens.new_full((batch_size, masks), token)), 1)
        if aux is not None and state is not None:
            aux = torch.cat((aux, state.expand(batch_size, masks, -1)), 1)
        out = self.model.forward(words, torch.cat((positions, places), 1), aux, attend)
        rows = torch.cat(((kept - 1)[:, None], (width + ahead).expand(batch_size, -1)), 1)
        logits = self.model.logits(out.gather(1, rows[:, :, None].expand(-1, -1, out.shape[2])))
        return {"scores": logits} if self._late else {"ids": self.model.to_target(argmax(logits))}
