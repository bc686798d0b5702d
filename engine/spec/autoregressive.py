"""The drafter of autoregressive draft models: EAGLE, EAGLE3, NEXTN and STANDALONE.

Draft KV slot p holds the pair (token p + 1, target feature of position p), at position p; its output predicts token
p + 2. A round's first proposal comes from the previous absorb (or prime); steps - 1 further forwards deepen it.

A chain of prediction layers (DeepSeek-V3, arXiv 2412.19437): layer m drafts step m, all in one extend.

Layer m's draft KV slot p holds (token p + 1 + m, layer m - 1's output at position p; for layer 0 the target's state),
and predicts token p + 2 + m. So with KV of positions below L, layer m's slots from L - m on depend on drafts. The next
extend knows the actual tokens and rebuilds them by starting `back` positions earlier, so every slot in a page that can
be shared is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits, max_depth
from specmatrix.engine.device.attention import DraftAttention, StepAttention
from specmatrix.engine.device.batch import StepBatch, causal_bias, count, prefix_bias
from specmatrix.engine.device.pool import KVLayout, KVPool
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.device.sampling import SamplingRows, drawn_drafts, law_of
from specmatrix.engine.device.token_tables import GrammarRows
from specmatrix.engine.spec import drafter
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, confidence, followed, shared_chain, shift_left
from specmatrix.kernels.argmax import argmax
from specmatrix.kernels.expand_topk import expand_topk
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.tree_layout import tree_layout


class DraftModel(Protocol):
    """A draft network. `hidden` is a target state, or the model's own `out` from the previous step."""

    kv: KVLayout
    carry_width: int
    vocab_size: int  # of its logits

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor | None, attend: object) -> Tensor:
        """tokens, positions [B, W]; returns out [B, W, C]."""
        ...

    def logits(self, out: Tensor) -> Tensor:
        """[..., C] -> [..., draft vocabulary] float32."""
        ...

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft-vocabulary ids -> target-vocabulary ids."""
        ...


@dataclass(eq=False)
class AutoregressiveDrafter:
    """Chains (topk 1) and trees (topk > 1) over one draft model whose KV shares the target's slots."""

    traits: Traits
    model: DraftModel
    pool: KVPool
    steps: int
    topk: int
    nodes: int
    capture: tuple[int, ...]
    vocab_size: int  # the target's
    draws: bool = False  # drafts of sampled requests are drawn from the draft's distribution
    constrained: bool = False  # drafts follow their request's grammar
    threshold: float = 0.0  # a chain's drafts are verified while their confidence is at least this; 0: all are

    def __post_init__(self) -> None:
        self.depth = max_depth(self.steps, self.nodes)
        self.key_span = self.traits.key_span
        self.carries = self._carries(self.model.carry_width)

    def _carries(self, width: int) -> tuple[DraftStateSpec, ...]:
        """The state between rounds: ids [topk], proposals for depth 1, best first, or logits [draft vocabulary] to draw
        it from; probs [topk], unless a chain; sure [1], the first draft's confidence, if it may be left out; hidden
        [width], unless the model carries none.
        """
        found = [DraftStateSpec("ids", (self.topk,), torch.int64, distinct=True)]
        if self.draws:
            found = [DraftStateSpec("scores", (self.model.vocab_size,), torch.float32)]
        if self.topk > 1:
            found.append(DraftStateSpec("probs", (self.topk,), torch.float32))
        if self.threshold:
            found.append(DraftStateSpec("sure", (1,), torch.float32))
        if width:
            found.append(DraftStateSpec("hidden", (width,), self.pool.data.dtype))
        return tuple(found)

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState:
        assert batch.lengths is not None
        return self._extend(batch, shift_left(tokens, batch.lengths, sampled, following), aux, batch.lengths)

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState:
        # Rows at and past `count` write KV that the next round overwrites before it is read.
        return self._extend(batch, verdict.tokens, aux, verdict.count)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        padded_kv_len = batch.padded_kv_len - batch.width
        state = relay.state(batch.rows)
        return self._chain(batch, state, padded_kv_len) if self.topk == 1 else self._tree(batch, state, padded_kv_len)

    def _extend(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, kept: Tensor) -> DraftState:
        """Write draft KV for `tokens` [B, W] from start on, and propose from row kept - 1 of each request."""
        positions, write, bias = batch.causal(tokens.shape[1], self.pool.data.dtype)
        attend = StepAttention(self.pool, write, batch.slots, bias, start=batch.start, causal=True)
        out = self.model.forward(tokens, positions, aux, attend)
        last = out.gather(1, (kept - 1)[:, None, None].expand(-1, 1, out.shape[2]))
        grammar = batch.grammar if self.constrained else None
        logits = self._logits(last, grammar, None if grammar is None else grammar.state[:, None])
        state = {"hidden": last[:, 0], **({"sure": confidence(logits)} if self.threshold else {})}
        if self.draws:
            return state | {"scores": logits[:, 0]}
        probs, ids = self._top(logits)
        state["ids"] = ids[:, 0]
        return state if probs is None else state | {"probs": probs[:, 0]}

    def _logits(self, out: Tensor, grammar: GrammarRows | None, states: Tensor | None) -> Tensor:
        """Logits [B, W, draft vocabulary], of the tokens that may follow states [B, W] if drafts are constrained."""
        return self._legal(self.model.logits(out), grammar, states)

    def _legal(self, logits: Tensor, grammar: GrammarRows | None, states: Tensor | None) -> Tensor:
        if grammar is None or states is None:
            return logits
        return grammar.masked(logits, states, self.model.to_target(count(logits.shape[2], logits.device)))

    def _top(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """The topk tokens of each row: probabilities (None for a chain) and target ids, [..., topk], best first."""
        if self.topk == 1:
            # A chain has one candidate per step, so no selection, in which equal scores would tie.
            return None, self.model.to_target(argmax(logits)[..., None])
        probs, ids = torch.softmax(logits, -1).topk(self.topk, -1)
        return probs, self.model.to_target(ids)

    def _chain(self, batch: StepBatch, state: DraftState, padded_kv_len: int) -> DraftTree:
        if batch.width == 1:
            return shared_chain(batch.root)
        rows = batch.sampling if self.draws else None
        grammar = batch.grammar if self.constrained else None
        states = None if grammar is None else grammar.state[:, None]
        first, law = self._drawn(state["scores"][:, None], batch, 1, rows) if self.draws else (state["ids"], None)
        tokens, laws, sure = [batch.root, first], [law], [state["sure"]] if self.threshold else []
        hidden = state["hidden"][:, None] if "hidden" in state else None
        deeper = batch.width - 2
        attend = self._draft_attention(batch, padded_kv_len, deeper)
        for step in range(deeper):
            attend.begin(step)
            hidden = self.model.forward(tokens[-1], (batch.start + step)[:, None], hidden, attend)
            states = followed(grammar, states, tokens[-1])
            logits = self._logits(hidden, grammar, states)
            token, law = self._drawn(logits, batch, step + 2, rows)
            tokens.append(token)
            laws.append(law)
            if self.threshold:
                sure.append(confidence(logits))
        q = torch.cat([law for law in laws if law is not None], 1) if rows else None
        return shared_chain(
            torch.cat(tokens, 1), q, drafter.confident_nodes(torch.cat(sure, 1), self.threshold) if sure else None
        )

    def _drawn(
        self, logits: Tensor, batch: StepBatch, column: int, rows: SamplingRows | None
    ) -> tuple[Tensor, Tensor | None]:
        """A chain's draft [B, 1] for a column, from logits [B, 1, draft vocabulary], and the distribution q [B, 1, V]
        over the target's vocabulary that it was drawn from; None if it is the argmax.
        """
        if rows is None:
            return self.model.to_target(argmax(logits)), None
        ids, q = drawn_drafts(logits, batch.start, count(column + 1, logits.device)[column:], rows)
        every = self.model.to_target(count(q.shape[2], q.device))
        return self.model.to_target(ids), q.new_zeros(len(q), 1, self.vocab_size).index_copy_(2, every, q)

    def _tree(self, batch: StepBatch, state: DraftState, padded_kv_len: int) -> DraftTree:
        """Best-first expansion (EAGLE-2, arXiv 2406.16858): each step expands the best topk of its topk**2 children;
        nodes are selected among the candidates of all steps.
        """
        tokens, scores = state["ids"], state["probs"]
        (batch_size, topk), device = tokens.shape, tokens.device
        candidate_ids, candidate_scores = [tokens], [scores]
        parents = [torch.arange(-1, topk, device=device).expand(batch_size, -1)]
        hidden = state["hidden"][:, None].expand(-1, topk, -1) if "hidden" in state else None
        attend = self._draft_attention(batch, padded_kv_len, (self.steps - 1) * topk)
        grammar = batch.grammar if self.constrained else None
        states = followed(grammar, None if grammar is None else grammar.state[:, None].expand(-1, topk), tokens)
        own = seen = torch.eye(topk, dtype=torch.bool, device=device).expand(batch_size, -1, -1)
        for step in range(self.steps - 1):
            attend.begin(step * topk, seen)
            positions = (batch.start + step)[:, None].expand(-1, topk)
            out = self.model.forward(tokens, positions, hidden, attend)
            probs, ids = self._top(self._logits(out, grammar, states))
            assert probs is not None
            grown, scores, chosen = expand_topk(scores, probs)
            candidate_ids.append(ids.flatten(1))
            candidate_scores.append(grown)
            tokens = ids.flatten(1).gather(1, chosen)
            beam = chosen // topk
            states = followed(grammar, None if states is None else states.gather(1, beam), tokens)
            parents.append(chosen + topk + step * topk * topk)
            hidden = out.gather(1, beam[:, :, None].expand(-1, -1, out.shape[2]))
            seen = torch.cat((seen.gather(1, beam[:, :, None].expand(-1, -1, seen.shape[2])), own), 2)
        picked, tree_parents = select_tree(
            torch.cat(candidate_scores, 1), torch.cat(parents[: max(1, self.steps - 1)], 1), self.nodes, topk
        )
        drafts = torch.cat(candidate_ids, 1).gather(1, picked)
        depths, ancestors = tree_layout(tree_parents)
        return DraftTree(torch.cat((batch.root, drafts), 1), tree_parents, depths, ancestors, self.depth)

    def _draft_attention(self, batch: StepBatch, padded_kv_len: int, scratch: int) -> DraftAttention:
        bias = prefix_bias(batch.start, padded_kv_len, self.pool.data.dtype)
        return DraftAttention(self.pool, batch.slots[:, :padded_kv_len], bias, scratch)


class MultiLayerDrafter(AutoregressiveDrafter):
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
