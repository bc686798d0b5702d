"""Llama (arXiv 2302.13971, grouped queries as in Llama 2), Mistral (arXiv 2310.06825), whose layers have a window, and
Qwen3 (arXiv 2505.09388), which adds head norms."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.device.pool import KVLayout
from engine.device.ranks import ALONE, Ranks
from engine.models.causal import CausalLM
from engine.models.config import ModelConfig
from engine.models.layers import Layer
from engine.models.weights import Take
from engine.models.workspace import Workspace, Workspaces


class Llama(CausalLM):
    """A LlamaForCausalLM, MistralForCausalLM or Qwen3ForCausalLM."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = True,
        context_length: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(config, weights, device, dtype, deterministic, context_length, ranks)
        self.kv = KVLayout(config.num_layers, self.share.num_kv_heads, config.head_dim)
        self.workspaces = Workspaces(self.share, dtype, device, double_lone=self.doubles)

    def layer(self, take: Take, prefix: str, index: int) -> Layer:
        return Layer(take, prefix, self.share, self.norm)

    def space(self, batch: int, width: int) -> Workspace:
        return self.workspaces.of(batch, width)
