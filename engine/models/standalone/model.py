"""A small language model as a draft, with the interface that all drafts share."""

from __future__ import annotations

from torch import Tensor

from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.layers import Attend, Masks


class Standalone:
    """A language model that drafts: it reads no target states, carries no state, and uses the target's token ids.

    `hidden` is accepted and ignored, so that a drafter can treat all drafts alike. masks: the mask token of a draft
    that predicts all steps in one forward (PARD, arXiv 2504.18583), which has no state; None for others.
    """

    carry_width = 0
    aux_layers: tuple[int, ...] = ()

    def __init__(self, model: CausalLM, mask_token: int | None = None) -> None:
        self.model = model
        self.masks: Masks | None = None if mask_token is None else (mask_token, None)
        self.kv, self.vocab_size = model.kv, model.vocab_size
        self.device, self.dtype = model.device, model.dtype

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor | None, attend: Attend) -> Tensor:
        """tokens and positions int64 [B, W] -> out [B, W, H] for `logits`."""
        out, _ = self.model.forward(tokens, positions, attend)
        return out

    def logits(self, out: Tensor) -> Tensor:
        """out [..., H] -> float32 [..., V]."""
        return self.model.logits(out)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as target ids: the vocabularies are the same."""
        return ids
