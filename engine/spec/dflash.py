"""DFLASH's drafter: committed positions are projected into draft KV, and one block forward drafts a whole chain.

Draft KV slot p is computed from the target's states at position p only, not from later tokens. The block, the bonus
token at position start and the mask tokens after it, attends to all slots below start and to itself, bidirectionally.

The drafter of drafts that predict all steps in one forward: P-EAGLE (arXiv 2602.01469), PARD (arXiv 2504.18583).

Draft KV slot p holds what an autoregressive draft of the same kind holds. The extend that fills the slots below the new
length L also runs steps - 1 mask tokens per request, at positions L, L + 1, ..., each of which sees slots below L and
the mask tokens up to itself; the row of slot L - 1 and these predict the next round's drafts. The masks' KV is in spare
slots and discarded, as the next extend knows the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.engine.device.attention import DraftAttention, step_and_masks
from specmatrix.engine.device.batch import StepBatch, count, prefix_bias
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.device.sampling import SamplingRows, drawn_drafts
from specmatrix.engine.models.dflash.model import DFlash
from specmatrix.engine.models.layers import Masks
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, confidence, confident_nodes, followed, shared_chain
from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.verify_lengths import verify_lengths


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


class BlockDrafter:
    """Chains of batch.width - 1 drafts, each the argmax or a draw at its own position of the block. budgeted: all rows
    together verify the relay's budget of drafts."""

    steps = topk = 1
    carries: tuple[DraftStateSpec, ...] = ()

    def __init__(
        self,
        traits: Traits,
        model: DFlash,
        pool: KVPool,
        nodes: int,
        draws: bool = False,
        threshold: float = 0.0,
        budgeted: bool = False,
    ) -> None:
        self.traits, self.model, self.pool, self.nodes = traits, model, pool, nodes
        self.draws, self.threshold, self.budgeted = draws, threshold, budgeted
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
        first = self.model.first
        rows = width - 1 + first
        masks = batch.root.new_full((len(batch.root), rows - 1), self.model.mask_token)
        bias = prefix_bias(batch.start, padded_kv_len, self.pool.data.dtype)
        attend = DraftAttention(self.pool, batch.slots[:, :padded_kv_len], bias, rows)
        everything = torch.ones(len(batch.root), rows, rows, dtype=torch.bool, device=batch.root.device)
        attend.begin(0, everything)
        out = self.model.forward(torch.cat((batch.root, masks), 1), batch.positions[:, :rows], attend)
        tokens, q, logits = self._chosen(batch, out[:, first:])
        if not (self.threshold or self.budgeted):
            return shared_chain(tokens, q)
        sure = self.model.confidences(out[:, first:], tokens[:, :-1])
        sure = confidence(logits) if sure is None else sure
        lengths = confident_nodes(sure, self.threshold)
        if not self.budgeted:
            return shared_chain(tokens, q, lengths)
        live = sure.masked_fill((batch.rows == 0)[:, None], 0.0)  # padding takes nothing of the budget
        lengths = torch.minimum(lengths, verify_lengths(live.cumprod(1), relay.budget))
        return shared_chain(tokens, q, lengths)._replace(confidences=sure)

    def _chosen(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The root and the drafts [B, 1 + D] from hidden [B, D, H], what they were drawn from, and their logits."""
        logits, rows = self.model.logits(hidden), batch.sampling if self.draws else None
        columns, head = count(batch.width, logits.device)[1:], self.model.block_head
        if head is None:
            drafts, q = _choose(logits, batch, columns, rows)
            return torch.cat((batch.root, drafts), 1), q, logits
        state, tokens, laws, every = head.begin(logits, hidden), [batch.root], [], []
        for column in range(len(columns)):
            following, state = head.step(state, column, tokens[-1][:, 0])
            token, law = _choose(following[:, None], batch, columns[column : column + 1], rows)
            tokens.append(token)
            every.append(following)
            laws += [] if law is None else [law]
        return torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None, torch.stack(every, 1)

    def _keep(self, batch: StepBatch, aux: Tensor | None) -> None:
        """Store the KV of every position of the step. aux: [B, W, states]."""
        assert aux is not None
        write = batch.write.reshape(-1)
        for layer, kv in enumerate(self.model.context(aux, batch.positions)):
            self.pool.store(layer, write, kv)


def _choose(
    logits: Tensor, batch: StepBatch, columns: Tensor, rows: SamplingRows | None
) -> tuple[Tensor, Tensor | None]:
    """Drafts [B, D] in these columns by their logits [B, D, V], and what they were drawn from, None if greedy."""
    return (argmax(logits), None) if rows is None else drawn_drafts(logits, batch.start, columns, rows)
