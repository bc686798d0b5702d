"""One rank's part of a target: its heads, its share of every feed-forward part, its rows of the vocabulary.

Projections into heads or intermediate numbers are split by output (column-parallel), projections out of them by input
(row-parallel), and the results of the latter are summed over the ranks (Megatron-LM, arXiv 1909.08053). Heads that are
fewer than the ranks are replicated: key heads unchanged, query heads with a fraction of their output. Norms, routers
and latent keys are on every rank, each expert is split. A gated delta net is split by key head, with its value heads,
their channels of the convolution and their states. Drafts are not split: every rank runs the whole draft.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import stored
from specmatrix.engine.models.weights import WeightReader

Unit = Literal["heads", "kv_heads", "numbers", "key_heads"]
# Last parts of a tensor's name: the dimension that is split, and the unit that must not be split.
SPLIT: Final[dict[str, tuple[int, Unit]]] = {
    "q_proj.weight": (0, "heads"),
    "q_b_proj.weight": (0, "heads"),
    "kv_b_proj.weight": (0, "heads"),
    "k_proj.weight": (0, "kv_heads"),
    "v_proj.weight": (0, "kv_heads"),
    "o_proj.weight": (1, "heads"),
    "gate_proj.weight": (0, "numbers"),
    "up_proj.weight": (0, "numbers"),
    "down_proj.weight": (1, "numbers"),
    "in_proj_qkvz.weight": (0, "key_heads"),
    "in_proj_ba.weight": (0, "key_heads"),
    "in_proj_qkv.weight": (0, "key_heads"),
    "in_proj_z.weight": (0, "key_heads"),
    "in_proj_b.weight": (0, "key_heads"),
    "in_proj_a.weight": (0, "key_heads"),
    "conv1d.weight": (0, "key_heads"),
    "linear_attn.A_log": (0, "key_heads"),
    "linear_attn.dt_bias": (0, "key_heads"),
    "out_proj.weight": (1, "key_heads"),
}
# Tensors of all queries, then all keys, then all values: each of these parts is split.
FLAT: Final = frozenset({"in_proj_qkv.weight", "conv1d.weight"})


def share(config: ModelConfig, size: int) -> ModelConfig:
    """The shape of one rank's part; `engine.core.config.rules.devices` refuses what cannot be divided."""
    experts, delta = config.experts, config.delta
    return replace(
        config,
        num_heads=max(1, config.num_heads // size),
        num_kv_heads=max(1, config.num_kv_heads // size),
        intermediate_size=config.intermediate_size // size,
        experts=None
        if experts is None
        else replace(experts, inner=experts.inner // size, shared=experts.shared // size),
        delta=None if delta is None else delta.share(size),
    )


class ShardedWeightReader(WeightReader):
    """Returns this rank's part of each tensor, from the part's shape; config: the whole model's."""

    def __init__(
        self, weights: dict[str, Tensor], where: str, config: ModelConfig, ranks: Ranks, device: torch.device
    ) -> None:
        super().__init__(weights, where)
        self._ranks, self._device, self._delta = ranks, device, config.delta
        self._units: dict[Unit, int] = {
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "numbers": ranks.size,
            "key_heads": 0 if config.delta is None else config.delta.key_heads,
        }

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Raises ConfigError if the whole tensor is missing or has another shape."""
        kind = ".".join(name.split(".")[-2:])
        split = SPLIT.get(kind) if self._ranks.size > 1 else None
        if split is None:
            return super().__call__(name, *shape).to(self._device)
        dim, unit = split
        units, (rank, size) = self._units[unit], (self._ranks.rank, self._ranks.size)
        count = max(1, units // size)
        each = shape[dim] // count
        whole = super().__call__(name, *shape[:dim], each * units, *shape[dim + 1 :])
        if kind in FLAT and (c := self._delta) is not None:
            keys = c.key_heads * c.key_dim
            parts = whole.split((keys, keys, c.heads * c.value_dim), dim)
            return torch.cat([part.chunk(size, dim)[rank] for part in parts], dim).to(self._device)
        part = whole.narrow(dim, rank * units // size * each, count * each).to(self._device)
        # The ranks that replicate a head each add a fraction of its output.
        return part * (units / size) if dim == 1 and units < size else part


class Vocabulary:
    """The rows of embedding and head [V, H], equally many on each rank; those past the last token are zeros.

    own_head [H, rows]: this rank's columns of the head.
    """

    def __init__(self, embedding: Tensor, head: Tensor, ranks: Ranks) -> None:
        self._ranks = ranks
        self._size = embedding.shape[0]
        self._rows = -(-self._size // ranks.size)
        self._first = ranks.rank * self._rows
        self._words = self._own(embedding)
        self.own_head = stored(self._own(head))
        self._whole: list[Tensor | None] = [None, None]

    def _own(self, table: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return table
        mine = table[self._first : self._first + self._rows]
        return pad(mine, (0, 0, 0, self._rows - len(mine))) if len(mine) < self._rows else mine.clone()

    def words(self, tokens: Tensor) -> Tensor:
        """tokens int64 [R] -> [R, H]."""
        if self._ranks.size == 1:
            return self._words.index_select(0, tokens)
        here = tokens - self._first
        others = (here < 0) | (here >= self._rows)
        found = self._words.index_select(0, here.masked_fill(others, 0))
        return self._ranks.total(found.masked_fill_(others[:, None], 0))

    def joined(self, logits: Tensor) -> Tensor:
        """The output of `own_head` [..., rows] -> [..., V], complete on every rank."""
        return logits if self._ranks.size == 1 else self._ranks.joined(logits)[..., : self._size]

    @property
    def embedding(self) -> Tensor:
        """The whole embedding table [V, H], for a draft that shares it; a collective, so all ranks must call it."""
        if self._whole[0] is None:
            self._whole[0] = self._ranks.joined(self._words, 0)[: self._size]
        return self._whole[0]

    @property
    def head(self) -> Tensor:
        """The whole head [H, V]; a collective like `embedding`."""
        if self._whole[1] is None:
            self._whole[1] = self._ranks.joined(self.own_head)[:, : self._size].contiguous()
        return self._whole[1]
