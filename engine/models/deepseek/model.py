"""DeepSeek-V3 (arXiv 2412.19437): latent attention, and a mixture of experts after the first dense layers."""

from __future__ import annotations

from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.deepseek.mla import MLALayer, MLAShape, mla_layout
from specmatrix.engine.models.weights import WeightReader


class Deepseek(CausalLM):
    """A DeepseekV3ForCausalLM. Its bundled prediction layers are left for a draft to load."""

    def prepare(self) -> None:
        self.kv = mla_layout(self.config, self.num_layers)

    def layer(self, take: WeightReader, prefix: str, index: int) -> MLALayer:
        assert self.config.experts is not None
        return MLALayer(take, prefix, self.share, self.norm, sparse=index >= self.config.experts.dense)

    def workspace(self, batch: int, width: int) -> MLAShape:
        return MLAShape(batch, width)
