"""Hybrids of gated delta nets and gated attention for training: transformers' Qwen3-Next and Qwen3.5, and the MTP head
that these omit (`mtp.*`), with the parameter names of published checkpoints. Experts are stacked, as transformers has
them, and unstacked when the checkpoint is written."""

from typing import Any

import torch
from torch import Tensor, nn

from specmatrix.matrix.zoo.heads import Attend
from specmatrix.matrix.zoo.net import FINAL, Cache, CausalNet, Table, initialise, rotary_dim, rotate
from specmatrix.matrix.zoo.recipes import Shape


def _dense_experts(own: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401 - transformers
    """Every expert for every token, [T, H] to [T, H]: transformers' eager form waits for the device at each expert, its
    default, a grouped product, needs strides that small models lack."""
    share = torch.zeros(len(hidden), own.num_experts, dtype=weights.dtype, device=hidden.device)
    gate, up = torch.einsum("th,eih->tei", hidden, own.gate_up_proj).chunk(2, -1)
    inner = own.act_fn(gate) * up * share.scatter(1, chosen, weights)[..., None]
    made: Tensor = inner.flatten(1) @ own.down_proj.transpose(1, 2).flatten(0, 1)
    return made


def _parts(shape: Shape) -> tuple[Any, Any, Any, Any]:
    """transformers' configuration of a shape, and its classes of a model, a decoder layer and a norm."""
    # Without the padding token, as training pads rows with it and also learns it as the end of an answer.
    fields = {name: value for name, value in vars(shape).items() if name not in ("pad_token_id", "torch_dtype")}
    if shape.model_type == "qwen3_next":
        from transformers import Qwen3NextConfig
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        from transformers.models.qwen3_next import modeling_qwen3_next as grouped

        names = grouped.Qwen3NextModel, grouped.Qwen3NextDecoderLayer, grouped.Qwen3NextRMSNorm
        ALL_EXPERTS_FUNCTIONS.register("dense", _dense_experts)
        fields["experts_implementation"] = "dense"
        return Qwen3NextConfig(**fields), *names
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as flat

    return Qwen3_5TextConfig(**fields), flat.Qwen3_5TextModel, flat.Qwen3_5DecoderLayer, flat.Qwen3_5RMSNorm


class PredictionHead(nn.Module):
    """The MTP head: embedding and state, each normed, joined by `fc`, then one full-attention layer and a norm."""

    def __init__(self, shape: Shape, config: Any, layer: Any, norm: Any) -> None:  # noqa: ANN401 - transformers
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.layers = nn.ModuleList([layer(config, shape.layer_types.index("full_attention"))])
        self.norm = norm(shape.hidden_size, eps=shape.rms_norm_eps)


class HybridNet(CausalNet):
    """The model and its MTP head. A cache holds transformers' own; its rows may have padding in front."""

    def __init__(self, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.shape, self.depth, self.hidden = shape, shape.num_hidden_layers, shape.hidden_size
        self.config, model, layer, norm = _parts(shape)
        self.model = model(self.config)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.mtp = PredictionHead(shape, self.config, layer, norm)
        initialise(self)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def prediction(self) -> nn.Module:
        """The part that is trained on the model's own answers."""
        return self.mtp

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

    def bundled(self) -> list["HybridHead"]:
        """The MTP head as a draft head; every step uses its only layer."""
        return [HybridHead(self)]


class HybridHead:
    """The MTP head as a draft head; the next step reads its state after `mtp.norm`."""

    def __init__(self, net: HybridNet) -> None:
        self.net, self.shape = net, net.shape

    def features(self, captured: Tensor) -> Tensor:
        """The target's final state, unchanged."""
        return captured

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """State [B, T, H] and logits [B, T, V] for tokens [B, T] and hidden [B, T, H]."""
        mtp: Any = self.net.mtp
        layer = mtp.layers[0]
        word = mtp.pre_fc_norm_embedding(self.net.model.embed_tokens(tokens))
        x = mtp.fc(torch.cat((word, mtp.pre_fc_norm_hidden(hidden)), -1))
        x = x + self._attention(layer.self_attn, layer.input_layernorm(x), table, attend)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        state = mtp.norm(x)
        return state, self.net.lm_head(state)

    def _attention(self, own: Any, x: Tensor, table: Table, attend: Attend) -> Tensor:  # noqa: ANN401 - transformers
        wide = (*x.shape[:2], -1, self.shape.head_dim)
        query, gate = own.q_proj(x).view(*x.shape[:2], self.shape.num_attention_heads, -1).chunk(2, -1)
        q, k = (self._turned(part, table) for part in (own.q_norm(query), own.k_norm(own.k_proj(x).view(wide))))
        mixed = attend(0, q, k, own.v_proj(x).view(wide).transpose(1, 2))
        out: Tensor = own.o_proj(mixed.transpose(1, 2).flatten(2) * torch.sigmoid(gate.flatten(2)))
        return out

    def _turned(self, heads: Tensor, table: Table) -> Tensor:
        """[B, T, H, D] to [B, H, T, D], with the first `rotary_dim` dimensions rotated."""
        turning, plain = heads.transpose(1, 2).tensor_split((rotary_dim(self.shape),), -1)
        return torch.cat((rotate(turning, table), plain), -1)
