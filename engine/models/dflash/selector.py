"""DFLASH2: DFLASH's block with convolutions along it, and a selector that scores each draft with the one before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.dflash.convolution import ConvolvedLayer
from specmatrix.engine.models.dflash.model import DFlash
from specmatrix.engine.models.layers import Norm
from specmatrix.engine.models.weights import WeightReader

PREFIX = "candidate_selector."


class DFlash2(DFlash):
    """A DFlash2DraftModel in z-lab's checkpoint layout."""

    layer_kind = ConvolvedLayer

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        named = {key.removeprefix("model."): w for key, w in weights.items()}
        own = {key: w for key, w in named.items() if key.startswith(PREFIX)}
        super().__init__(config, {key: w for key, w in named.items() if key not in own}, target)
        self.block_head = CandidateSelector(config, own, self.norm)


class CandidateSelector:
    """score(c) = logit(c) + sum(A[p] * (P h) * B[c]) for the K likeliest tokens c of a row with hidden h, after the
    token p: a draft depends on the one before it, which is chosen first (no search over paths)."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], norm: Norm) -> None:
        assert config.draft is not None and config.draft.dflash2 is not None
        take, rank = WeightReader(weights, config.architecture), config.draft.dflash2.rank
        self.candidates, self.products = config.draft.dflash2.candidates, norm.own
        self.predecessors = take(f"{PREFIX}predecessor_codebook", config.vocab_size, rank)
        self.successors = take(f"{PREFIX}successor_codebook", config.vocab_size, rank)
        self.projection = norm.stored(take(f"{PREFIX}hidden_projection.weight", rank, config.hidden_size))
        take.done()
        # A product, as the order of its sums does not depend on the number of rows.
        self.total = norm.stored(self.successors.new_ones(1, rank))

    def begin(self, logits: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        unary, ids = logits.topk(self.candidates)
        code = self.products.linear(hidden.flatten(0, 1), self.projection).view(*hidden.shape[:2], -1)
        return unary, ids, code, torch.full_like(logits[:, 0], -torch.inf)

    def step(self, state: tuple[Tensor, ...], column: int, previous: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        unary, ids, code, nothing = state
        left = self.predecessors.index_select(0, previous) * code[:, column]
        pairs = head_logits(left[:, None] * self.successors[ids[:, column]], self.total, self.products)[..., 0]
        return nothing.scatter(1, ids[:, column], unary[:, column] + pairs), state
