"""The interface of a target model of any architecture."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend


class Target(Protocol):
    """A language model that reads and writes KV through `Attend` and can capture its layers' input states.

    embedding [V, H] and head [H, V] can be used by drafts. kv: the layout of its pool. deterministic: a token's result
    is bitwise independent of the number of tokens in the call. row_form: the matrix-product forms that guarantee this
    on a CPU. positions: the number of supported positions.
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
        """tokens and positions int64 [B, W] -> hidden [B, W, H] after the final norm, and the captured states.

        capture: for each i the residual stream at the input of layer i (num_layers: the output of the last; FINAL: the
        hidden state after the final norm), concatenated in that order [B, W, len(capture) * H]; None if nothing is
        captured.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> float32 [..., V]."""
        ...

    def window_of(self, layer: int) -> int | None:
        """A layer's sliding window in tokens, the query's own included; None without one."""
        ...
