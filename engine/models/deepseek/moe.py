"""Feed-forward parts of DeepSeek-V3 and Qwen3-Next: a dense gated MLP, and a mixture of experts.

Every expert runs on every row, and a row's weight for an expert that it did not choose is 0. So no row's bits depend on
other rows' choices, and the host reads nothing, at the cost of arithmetic that small models can afford.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Norm
from specmatrix.engine.models.linear_ops import LinearOps
from specmatrix.engine.models.weights import WeightReader

# Intermediate size of a product over several experts: up to here rows are known to keep their bits, see `linear_ops`.
WIDEST: Final = 384


class GatedMLP:
    """down(silu(gate(h)) * up(h)); `front` is the weight of the preceding norm.

    products: the norm's, unless the caller sums a part of it.
    """

    def __init__(
        self,
        take: WeightReader,
        prefix: str,
        hidden: int,
        inner: int,
        norm: Norm,
        front: Tensor,
        products: LinearOps | None = None,
    ) -> None:
        self.linear, self.add_linear, _, _ = products or norm.products
        self.silu = norm.silu
        gate = take(f"{prefix}.gate_proj.weight", inner, hidden)
        up = take(f"{prefix}.up_proj.weight", inner, hidden)
        self.gate_up = norm.stored(norm.fold(torch.cat((gate, up)), front))
        self.down = norm.stored(take(f"{prefix}.down_proj.weight", hidden, inner))

    def __call__(self, x: Tensor, h: Tensor) -> None:
        """Adds to x [R, hidden], in place; h [R, hidden] is the input of projections after the norm."""
        gate, up = self.linear(h, self.gate_up).chunk(2, 1)
        self.add_linear(x, self.silu(gate).mul_(up), self.down)


class ExpertBlock(NamedTuple):
    """Adjacent experts as one product: gate_up [hidden, 2 * n * inner], gates first; down [n * inner, hidden]."""

    experts: slice
    gate_up: Tensor
    down: Tensor


class MoE:
    """Routed and shared experts (arXiv 2412.19437, equations 12 to 16)."""

    def __init__(self, take: WeightReader, prefix: str, config: ModelConfig, norm: Norm, front: Tensor) -> None:
        assert config.experts is not None
        self.config = c = config.experts
        hidden = config.hidden_size
        self.ranks = norm.ranks
        self.linear, self.add_linear, _, _ = norm.own
        self.silu, self.sigmoid = norm.silu, norm.sigmoid
        name = "shared_expert" if c.softmax else "shared_experts"
        self.shared = GatedMLP(take, f"{prefix}.{name}", hidden, c.shared, norm, front, norm.own)
        # Scores decide between close values: float32 whatever the model's dtype. A spare column keeps rows
        # non-contiguous, because a sigmoid over contiguous rows computes the last few numbers by another routine.
        router = norm.fold(take(f"{prefix}.gate.weight", c.routed, hidden), front).float()
        # With softmax scores the column is the shared expert's gate.
        more = torch.zeros_like(router[:1])
        if c.softmax:
            more = norm.fold(take(f"{prefix}.shared_expert_gate.weight", 1, hidden), front).float()
        self.router = norm.stored(torch.cat((router, more)))
        self.bias = None if c.softmax else take(f"{prefix}.gate.e_score_correction_bias", c.routed).float()
        experts = [GatedMLP(take, f"{prefix}.experts.{i}", hidden, c.inner, norm, front) for i in range(c.routed)]
        size = max(1, WIDEST // c.inner)
        parts = [slice(at, min(at + size, c.routed)) for at in range(0, c.routed, size)]
        self.blocks = [_block(experts, part, norm.own) for part in parts]

    def __call__(self, x: Tensor, h: Tensor) -> None:
        """Adds to x [R, hidden], in place; h [R, hidden] is the input of projections after the norm."""
        if self.ranks.size == 1:
            self._add(x, h)
        else:
            part = torch.zeros_like(x)
            self._add(part, h)
            self.ranks.total(part, x)

    def _add(self, x: Tensor, h: Tensor) -> None:
        """Add this rank's part of every expert."""
        weights, gate = self.weights(h)
        weights = weights.to(x.dtype)[:, :, None]
        shared = x if gate is None else torch.zeros_like(x)
        self.shared(shared, h)
        if gate is not None:
            x += shared.mul_(gate.to(x.dtype))
        for experts, gate_up, down in self.blocks:
            gate, up = self.linear(h, gate_up).chunk(2, 1)
            inner = self.silu(gate).mul_(up)
            inner.view(len(inner), -1, self.config.inner).mul_(weights[:, experts])
            self.add_linear(x, inner, down)

    def weights(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """float32 [R, routed]: each row's weights, 0 for experts that it did not choose; and float32 [R, 1]: the
        shared expert's gate, if it has one."""
        c, made = self.config, self.linear(h.float(), self.router)
        if self.bias is None:
            scores, gate = made[:, : c.routed].softmax(1), self.sigmoid(made[:, c.routed :])
            return self._chosen(scores, scores), gate
        scores = self.sigmoid(made[:, : c.routed])
        return self._chosen(scores, scores + self.bias), None

    def _chosen(self, scores: Tensor, wish: Tensor) -> Tensor:
        """The scores of the experts with the highest `wish` [R, routed], scaled; 0 for the others."""
        c = self.config
        if c.open_groups < c.groups:
            best_two = wish.view(-1, c.groups, c.routed // c.groups).topk(2)[0].sum(-1)
            closed = torch.ones_like(best_two, dtype=torch.bool).scatter_(1, best_two.topk(c.open_groups)[1], False)
            wish.view(-1, c.groups, c.routed // c.groups).masked_fill_(closed[:, :, None], float("-inf"))
        chosen = wish.topk(c.chosen)[1]
        taken = scores.gather(1, chosen)
        if c.normed:
            taken = taken / (taken.sum(-1, keepdim=True) + 1e-20)
        return torch.zeros_like(scores).scatter_(1, chosen, taken * c.scale)


def _block(experts: list[GatedMLP], part: slice, products: LinearOps) -> ExpertBlock:
    gates, ups = zip(*(expert.gate_up.chunk(2, 1) for expert in experts[part]), strict=True)
    down = torch.cat([expert.down for expert in experts[part]])
    return ExpertBlock(part, products.hold(torch.cat((*gates, *ups), 1)), products.hold(down))
