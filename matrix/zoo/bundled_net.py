"""Models with MTP layers, which transformers omits: DeepSeek-V3 with MLA and MoE (arXiv 2412.19437), and hybrids of
gated delta nets and gated attention, Qwen3-Next and Qwen3.5."""

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.net import Attend, CausalNet, Table, by_row

# Step size of an expert's bias towards an even load (arXiv 2408.15664).
BALANCE_RATE: Final = 1e-3


class BundledHead:
    """An MTP layer as a draft head: embedding and state, each normed, joined, then one decoder layer and a norm; the
    next step reads its state after that norm."""

    def __init__(self, net: "BundledNet", layer: Any, word: Any, state: Any, join: Any, last: Any) -> None:  # noqa: ANN401 - transformers
        self.net, self.shape, self.layer = net, net.shape, layer
        self.word, self.state, self.join, self.last = word, state, join, last

    def features(self, captured: Tensor) -> Tensor:
        """The target's final state, unchanged."""
        return captured

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """State [B, T, H] and logits [B, T, V] for tokens [B, T] and hidden [B, T, H]."""
        x = self.join(torch.cat((self.word(self.net.model.embed_tokens(tokens)), self.state(hidden)), -1))
        x = self.layer(x, position_embeddings=by_row(table), attend=attend)
        state = self.last(x)
        return state, self.net.lm_head(state)


class BundledNet(CausalNet):
    """A model with MTP layers."""

    @property
    def prediction(self) -> nn.Module:
        """The part that is trained on the model's own answers."""
        raise NotImplementedError

    def bundled(self) -> list[BundledHead]:
        """Each MTP layer as a draft head."""
        raise NotImplementedError


class HybridNet(BundledNet):
    """A hybrid; every step uses the only layer of its MTP head (`mtp.*`)."""

    def add_prediction(self) -> None:
        self.mtp = nn.Module()
        self.mtp.fc = self.joint()
        self.mtp.pre_fc_norm_embedding, self.mtp.pre_fc_norm_hidden = self.norm(), self.norm()
        self.mtp.layers = nn.ModuleList([self.layer(self.shape.layer_types.index("full_attention"))])
        self.mtp.norm = self.norm()

    @property
    def prediction(self) -> nn.Module:
        return self.mtp

    def bundled(self) -> list[BundledHead]:
        mtp: Any = self.mtp
        return [BundledHead(self, mtp.layers[0], mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden, mtp.fc, mtp.norm)]


class DeepseekNet(BundledNet):
    """A DeepSeek-V3, whose MTP layers follow the model's in `model.layers`; training balances its experts' load."""

    def add_prediction(self) -> None:
        for index in range(self.depth, self.depth + self.shape.num_nextn_predict_layers):
            layer = self.layer(index)
            layer.enorm, layer.hnorm, layer.eh_proj = self.norm(), self.norm(), self.joint()
            # The norm before the shared head; the head itself is the model's.
            layer.shared_head = nn.ModuleDict({"norm": self.norm()})
            self.model.layers.append(layer)
        for layer in self.model.layers[self.shape.first_k_dense_replace :]:
            layer.mlp.gate.register_forward_hook(_balanced)

    @property
    def prediction(self) -> nn.Module:
        made: nn.Module = self.model.layers[self.depth :]
        return made

    def bundled(self) -> list[BundledHead]:
        return [
            BundledHead(self, layer, layer.enorm, layer.hnorm, layer.eh_proj, layer.shared_head["norm"])
            for layer in self.model.layers[self.depth :]
        ]


def _balanced(gate: Any, read: tuple[Tensor], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # noqa: ANN401 - transformers
    """What a router gives, in float32 where autocast has less; in training, move each expert's bias by its load."""
    with torch.autocast(read[0].device.type, enabled=False):
        out = gate.forward(read[0])
    if gate.training:
        load = F.one_hot(out[2], gate.num_experts).float().sum(1).mean(0)
        gate.e_score_correction_bias += BALANCE_RATE * (load.mean() - load).sign()
    return out
