"""What the engine needs of a target model, whatever its architecture."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend


class Target(Protocol):
    """A language model that reads and writes KV through `Attend` and can show what its layers see.

    embedding [V, H] and head [H, V] are what drafts share. kv: the shape of its pool. deterministic: a token's result
    does not depend, bit by bit, on how many tokens share the call. row_form: how its products keep that on a CPU.
    positions: a token's is below it.
    """

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    deterministic: bool
    num_layers: int
    positions: int
    hidden_size: int
    vocab_size: int
    kv: KVLayout
    embedding: Tensor
    head: Tensor

    @property
    def row_form(self) -> str | None: ...

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, capture: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """tokens and positions int64 [B, W] -> hidden [B, W, H] behind the final norm, and the captured states.

        capture: for each i the residual stream as it enters layer i (num_layers: as it leaves the last; FINAL: the
        hidden state behind the final norm), side by side in that order [B, W, len(capture) * H]; None if nothing is
        captured.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> float32 [..., V]."""
        ...

    def window_of(self, layer: int) -> int | None:
        """How many tokens a layer may look back, the query's own included; None for all."""
        ...
