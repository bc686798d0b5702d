"""transformers' own models for training, and the MTP layers that these omit: DeepSeek-V3 with MLA and MoE (arXiv
2412.19437), and hybrids of gated delta nets and gated attention, Qwen3-Next and Qwen3.5. Parameter names are those of
published checkpoints, except that experts are stacked, as transformers has them, and unstacked when the checkpoint is
written."""

from copy import deepcopy
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.heads import Attend
from specmatrix.matrix.zoo.net import FINAL, Cache, CausalNet, Table, initialise
from specmatrix.matrix.zoo.recipes import Shape

# Step size of an expert's bias towards an even load (arXiv 2408.15664).
BALANCE_RATE: Final = 1e-3


def _dense_experts(own: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401 - transformers
    """Every expert for every token, [T, H] to [T, H]: transformers' eager form waits for the device at each expert, its
    default, a grouped product, needs strides that small models lack."""
    share = torch.zeros(len(hidden), own.num_experts, dtype=weights.dtype, device=hidden.device)
    gate, up = torch.einsum("th,eih->tei", hidden, own.gate_up_proj).chunk(2, -1)
    inner = own.act_fn(gate) * up * share.scatter(1, chosen, weights)[..., None]
    made: Tensor = inner.flatten(1) @ own.down_proj.transpose(1, 2).flatten(0, 1)
    return made


def _given(
    own: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, attend: Attend, **_: object
) -> tuple[Tensor, None]:
    """Attention by the caller's `attend`, in the form of transformers' attention functions."""
    del own, mask
    return attend(0, q, k, v).transpose(1, 2), None


class BundledHead:
    """An MTP layer as a draft head: embedding and state, each normed, joined, then one decoder layer and a norm; the
    next step reads its state after that norm."""

    def __init__(self, net: "TransformersNet", layer: Any, word: Any, state: Any, join: Any, last: Any) -> None:  # noqa: ANN401 - transformers
        self.net, self.shape, self.layer = net, net.shape, layer
        self.word, self.state, self.join, self.last = word, state, join, last

    def features(self, captured: Tensor) -> Tensor:
        """The target's final state, unchanged."""
        return captured

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """State [B, T, H] and logits [B, T, V] for tokens [B, T] and hidden [B, T, H]."""
        x = self.join(torch.cat((self.word(self.net.model.embed_tokens(tokens)), self.state(hidden)), -1))
        x = self.layer(x, position_embeddings=(table[0][None], table[1][None]), attend=attend)
        state = self.last(x)
        return state, self.net.lm_head(state)


class TransformersNet(CausalNet):
    """A model and its MTP layers. A cache holds transformers' own; its rows may have padding in front."""

    def __init__(self, shape: Shape) -> None:
        from transformers import CONFIG_MAPPING, MODEL_MAPPING, AttentionInterface
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        AttentionInterface.register("given", _given)
        ALL_EXPERTS_FUNCTIONS.register("dense", _dense_experts)
        nn.Module.__init__(self)
        self.shape, self.depth, self.hidden = shape, shape.num_hidden_layers, shape.hidden_size
        # Without the padding token, as training pads rows with it and also learns it as the end of an answer.
        fields = {name: value for name, value in vars(shape).items() if name not in ("pad_token_id", "torch_dtype")}
        made: Any = CONFIG_MAPPING[shape.model_type]
        self.config: Any = made(**fields, experts_implementation="dense")
        model: Any = MODEL_MAPPING[type(self.config)]
        self.model: Any = model(self.config)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.add_prediction()
        initialise(self)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def add_prediction(self) -> None:
        """Add the MTP layers."""
        raise NotImplementedError

    @property
    def prediction(self) -> nn.Module:
        """The part that is trained on the model's own answers."""
        raise NotImplementedError

    def bundled(self) -> list[BundledHead]:
        """Each MTP layer as a draft head."""
        raise NotImplementedError

    def layer(self, index: int) -> Any:  # noqa: ANN401 - transformers
        """A new decoder layer, like the model's at `index`, whose attention is the caller's."""
        config = deepcopy(self.config)
        config._attn_implementation = "given"
        return type(self.model.layers[0])(config, index)

    def norm(self) -> nn.Module:
        """A new norm of hidden states."""
        made: nn.Module = type(self.model.norm)(self.hidden, eps=self.shape.rms_norm_eps)
        return made

    def joint(self) -> nn.Linear:
        """A new projection of embedding and state together."""
        return nn.Linear(2 * self.hidden, self.hidden, bias=False)

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, aux: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """As for `CausalNet`."""
        if cache is not None and cache.whole is None:
            from transformers import DynamicCache

            cache.whole = DynamicCache(config=self.config)
        past = None if cache is None else cache.whole
        padded: dict[str, Tensor] = {}
        if cache is not None:
            end = cache.length + tokens.shape[1]
            place = torch.arange(end, device=tokens.device) - cache.padding.to(tokens.device)[:, None]
            padded = {"attention_mask": (place >= 0).long(), "position_ids": place[:, cache.length :].clamp(min=0)}
            cache.length = end
        made: Any = self.model(
            input_ids=tokens, past_key_values=past, use_cache=past is not None, output_hidden_states=bool(aux), **padded
        )
        final = made.last_hidden_state
        kept = [final if index == FINAL else made.hidden_states[index + 1] for index in aux]
        return self.lm_head(final), torch.cat(kept, -1) if aux else None


class HybridNet(TransformersNet):
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


class DeepseekNet(TransformersNet):
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
