"""DeepSeek-V3 (arXiv 2412.19437): latent attention, and a mixture of experts behind the first dense layers."""

from __future__ import annotations

from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.deepseek.mla import LatentLayer, Shape, latent_layout
from specmatrix.engine.models.weights import Take


class Deepseek(CausalLM):
    """A DeepseekV3ForCausalLM. Its bundled prediction layers are left for a draft to load."""

    def prepare(self) -> None:
        self.kv = latent_layout(self.config, self.num_layers)

    def layer(self, take: Take, prefix: str, index: int) -> LatentLayer:
        assert self.config.experts is not None
        return LatentLayer(take, prefix, self.share, self.norm, sparse=index >= self.config.experts.dense)

    def space(self, batch: int, width: int) -> Shape:
        return Shape(batch, width)
