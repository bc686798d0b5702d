"""Llama (arXiv 2302.13971, grouped-query attention as in Llama 2), Mistral (arXiv 2310.06825), with a sliding window,
and Qwen3 (arXiv 2505.09388), with head norms."""

from __future__ import annotations

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.layers import DecoderLayer, Workspace, Workspaces
from specmatrix.engine.models.weights import WeightReader


class Llama(CausalLM):
    """A LlamaForCausalLM, MistralForCausalLM or Qwen3ForCausalLM."""

    def prepare(self) -> None:
        self.kv = KVLayout(self.num_layers, self.share.num_kv_heads, self.config.head_dim)
        self.workspaces = Workspaces(self.share, self.dtype, self.device)

    def layer(self, take: WeightReader, prefix: str, index: int) -> DecoderLayer:
        return DecoderLayer(take, prefix, self.share, self.norm)

    def workspace(self, batch: int, width: int) -> Workspace:
        return self.workspaces.of(batch, width)
