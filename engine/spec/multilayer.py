"""A chain of prediction layers (DeepSeek-V3, arXiv 2412.19437): layer m drafts step m, all in one extend.

Layer m's draft KV slot p holds (token p + 1 + m, layer m - 1's output at position p; for layer 0 the target's state),
and predicts token p + 2 + m. So with KV of positions below L, layer m's slots from L - m on depend on drafts. The next
extend knows the actual tokens and rebuilds them by starting `back` positions earlier, so every slot in a page that can
be shared is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, causal_bias, count
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.device.sampling import drawn_drafts, law_of
from specmatrix.engine.spec.autoregressive import DraftModel
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, followed, shared_chain, shift_left


class MultiLayerDrafter:
    """Chains with one draft per layer, all computed by the previous extend."""

    topk = 1
    layer_per_step = True

    def __init__(
        self,
        traits: Traits,
        layers: Sequence[DraftModel],
        pool: KVPool,
        capture: tuple[int, ...],
        nodes: int,
        draws: bool = False,
        constrained: bool = False,
    ) -> None:
        self.traits, self.layers, self.pool, self.capture, self.nodes = traits, layers, pool, capture, nodes
        self.draws, self.constrained = draws, constrained
        self.steps = self.key_span = len(layers)
        self.back = len(layers) - 1
        width, dtype = layers[0].carry_width, pool.data.dtype
        # Token p + 1 and the target's state at p for the last `back` positions, of which `held` are known.
        self.carries = (
            DraftStateSpec("ids", (self.steps,), torch.int64),
            DraftStateSpec("tokens", (self.back,), torch.int64),
            DraftStateSpec("states", (self.back, width), dtype),
            DraftStateSpec("held", (), torch.int64),
            # Logits from which sampled drafts are drawn.
            *([DraftStateSpec("scores", (self.steps, layers[0].vocab_size), torch.float32)] if draws else []),
        )

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState:
        assert batch.lengths is not None
        return self._extend(batch, shift_left(tokens, batch.lengths, sampled, following), aux, batch.lengths)

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState:
        # Rows at and past `count` write KV that the next round overwrites before it is read.
        return self._extend(batch, verdict.tokens, aux, verdict.count)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        state, rows = relay.state(batch.rows), batch.sampling if self.draws else None
        q = None if rows is None or batch.width == 1 else law_of(state["scores"][:, : batch.width - 1], rows)
        return shared_chain(torch.cat((batch.root, state["ids"][:, : batch.width - 1]), 1), q)

    def _extend(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, kept: Tensor) -> DraftState:
        """Run all layers over `back` positions before start and W positions from start on, and propose from the last
        kept one. tokens [B, W]: the token after each position.
        """
        assert aux is not None
        carried, back = batch.carried, self.back
        known = torch.cat((carried["tokens"], tokens), 1)
        states = torch.cat((carried["states"], aux), 1)
        offsets = count(known.shape[1], tokens.device) - back
        at = (batch.start[:, None] + offsets).clamp(0, batch.padded_kv_len - 1)
        attend = self._attention(batch, carried["held"], offsets, at)
        last = (back + kept - 1)[:, None]
        ids, out, drafts, scores = known, states, [], []
        rows = batch.sampling if self.draws else None
        grammar = batch.grammar if self.constrained else None
        legal = None if grammar is None else grammar.state[:, None]
        for number, layer in enumerate(self.layers, 1):
            out = layer.forward(ids, at, out, attend)
            logits = layer.logits(out.gather(1, last[:, :, None].expand(-1, -1, out.shape[2])))
            if grammar is not None and legal is not None:
                logits = grammar.masked(logits, legal, count(logits.shape[2], logits.device))
            best = logits.argmax(-1)
            if rows is not None:
                column = count(number + 1, tokens.device)[number:]
                best = drawn_drafts(logits, batch.start + kept, column, rows)[0]
            legal = followed(grammar, legal, best)
            drafts.append(best)
            scores.append(logits)
            ids = ids.roll(-1, 1).scatter(1, last, best)
        behind = kept[:, None] + count(back, tokens.device)
        return {
            "ids": torch.cat(drafts, 1),
            "tokens": known.gather(1, behind),
            "states": states.gather(1, behind[:, :, None].expand(-1, -1, states.shape[2])),
            "held": (carried["held"] + kept).clamp(max=back),
            "scores": torch.cat(scores, 1),
        }

    def _attention(self, batch: StepBatch, held: Tensor, offsets: Tensor, at: Tensor) -> StepAttention:
        """Causal attention over positions `at` [B, back + W]; positions that must not be rebuilt write to the padding
        slot.
        """
        write = batch.slots.gather(1, at[:, : self.back]).masked_fill(offsets[: self.back] < -held[:, None], 0)
        write = torch.cat((write, batch.write[:, : offsets.shape[0] - self.back]), 1)
        return StepAttention(self.pool, write, batch.slots, causal_bias(at, batch.padded_kv_len, self.pool.data.dtype))
