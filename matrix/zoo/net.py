"""Language models for training, which are transformers' own, and the layers of drafts, with the parameter names of
Hugging Face checkpoints (Llama and Qwen3 layouts). A model's experts are stacked, as transformers has them, and
unstacked when the checkpoint is written."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from specmatrix.matrix.zoo.registry import Shape

# Index, among captured layers, of the target's state after its final norm.
FINAL: Final = -1

Table = tuple[Tensor, Tensor]
# layer, q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv] -> [B, H, T, Dv]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def rotary_dim(shape: Shape) -> int:
    """How many dimensions of a head are rotated."""
    own: int = getattr(shape, "qk_rope_head_dim", 0)
    return own or int(shape.head_dim * getattr(shape, "partial_rotary_factor", 1))


def rope_table(shape: Shape, positions: Tensor) -> Table:
    """cos and sin [..., rotary_dim] float32 for rotary embedding in half-split form; `shape.rotary`: another rule."""
    if (own := getattr(shape, "rotary", None)) is not None:
        return own(positions)  # type: ignore[no-any-return]  # a caller's
    width = rotary_dim(shape)
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * shape.rope_theta ** (-steps / width)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((angles.sin(), angles.sin()), -1)


def rotate(x: Tensor, table: Table) -> Tensor:
    """Apply rotary embedding to x [B, H, T, D] with a table of [T, D] or broadcastable."""
    wide = x.float()
    first, second = wide.chunk(2, -1)
    return (wide * table[0] + torch.cat((-second, first), -1) * table[1]).to(x.dtype)


def by_row(table: Table) -> Table:
    """A table of [T, D] or [B, 1, T, D] as transformers has it, [1, T, D] or [B, T, D]."""
    return table[0].view(-1, *table[0].shape[-2:]), table[1].view(-1, *table[1].shape[-2:])


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm with a learned scale, computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        normed = super().forward(x.float())
        # Cast once here instead of in each following linear layer.
        kind = x.device.type
        return normed.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else normed


class Attention(nn.Module):
    """Projections of grouped-query attention; `width`: input width (twice the hidden width in the EAGLE3 head)."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.shape, self.normed = shape, shape.model_type == "qwen3"
        self.q_proj = nn.Linear(width, shape.num_attention_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * shape.head_dim, shape.hidden_size, bias=False)
        if self.normed:
            self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def project(self, x: Tensor, table: Table) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, H, T, D], k and v [B, Hkv, T, D] of x [B, T, width], rotated."""
        return rotate(self.queries(x), table), *self.keys_values(x, table)

    def queries(self, x: Tensor) -> Tensor:
        """[B, H, T, D] of x [B, T, width], not yet rotated."""
        q = self._heads(self.q_proj(x))
        return self.q_norm(q) if self.normed else q

    def keys_values(self, x: Tensor, table: Table) -> tuple[Tensor, Tensor]:
        """k (rotated) and v [B, Hkv, T, D] of x [B, T, width]."""
        k, v = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        return rotate(self.k_norm(k) if self.normed else k, table), v

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """[B, H, T, D] back to the hidden width."""
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out


def widened(x: Tensor, heads: int) -> Tensor:
    """x [B, Hkv, T, D] with each head repeated for the query heads of its group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


class Layer(nn.Module):
    """One decoder layer of a draft; `width`: that of its attention's input, by default the hidden width."""

    def __init__(self, shape: Shape, width: int | None = None) -> None:
        from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape, width or shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp: nn.Module = Qwen3MLP(shape)  # type: ignore[no-untyped-call]

    def onward(self, x: Tensor, heads: Tensor) -> Tensor:
        """x [B, T, H] behind this layer, from what its attention's heads [B, H, T, Dv] found."""
        x = x + self.self_attn.merge(heads)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Cache:
    """transformers' KV cache of a model, and padding [B]: how many tokens in front of each row it must not see."""

    def __init__(self, padding: Tensor | None = None) -> None:
        self.length = 0
        self.whole: object = None
        self.padding = torch.zeros(1, dtype=torch.int64) if padding is None else padding


def _given(own: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, attend: Attend | None = None, **how: Any) -> Any:  # noqa: ANN401 - transformers
    """Attention by the caller's `attend`, if there is one, in the form of transformers' attention functions."""
    if attend is not None:
        return attend(own.layer_idx, q, k, v).transpose(1, 2), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(own, q, k, v, mask, **how)


def _dense_experts(own: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401 - transformers
    """Every expert for every token, [T, H] to [T, H]: transformers' eager form waits for the device at each expert, its
    default, a grouped product, needs strides that small models lack."""
    share = torch.zeros(len(hidden), own.num_experts, dtype=weights.dtype, device=hidden.device)
    gate, up = torch.einsum("th,eih->tei", hidden, own.gate_up_proj).chunk(2, -1)
    inner = own.act_fn(gate) * up * share.scatter(1, chosen, weights)[..., None]
    made: Tensor = inner.flatten(1) @ own.down_proj.transpose(1, 2).flatten(0, 1)
    return made


class CausalNet(nn.Module):
    """A language model: transformers' own, and the parts that these omit."""

    def __init__(self, shape: Shape) -> None:
        from transformers import CONFIG_MAPPING, MODEL_MAPPING, AttentionInterface, AttentionMaskInterface
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register("given", _given)
        AttentionMaskInterface.register("given", sdpa_mask)
        ALL_EXPERTS_FUNCTIONS.register("dense", _dense_experts)
        super().__init__()
        self.shape, self.depth, self.hidden = shape, shape.num_hidden_layers, shape.hidden_size
        # Without the padding token, as training pads rows with it and also learns it as the end of an answer.
        fields = {name: value for name, value in vars(shape).items() if name not in ("pad_token_id", "torch_dtype")}
        made: Any = CONFIG_MAPPING[shape.model_type]
        self.config: Any = made(**fields, attn_implementation="given", experts_implementation="dense")
        model: Any = MODEL_MAPPING[type(self.config)]
        self.model: Any = model(self.config)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.add_prediction()
        initialise(self)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def add_prediction(self) -> None:
        """Add the MTP layers, if it has any."""

    def layer(self, index: int) -> Any:  # noqa: ANN401 - transformers
        """A new decoder layer, like the model's at `index`."""
        return type(self.model.layers[0])(self.config, index)

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
        """Logits [B, T, V] for tokens [B, T], and concatenated outputs of the layers in `aux` [B, T, len(aux)*H].

        FINAL in `aux` is the state after the final norm; the state before it cannot be had.
        """
        if cache is not None and cache.whole is None:
            from transformers import DynamicCache

            cache.whole = DynamicCache(config=self.config)
        past = None if cache is None else cache.whole
        padded: dict[str, Tensor] = {}
        if cache is not None:
            end = cache.length + tokens.shape[1]
            place = (
                torch.arange(end, device=tokens.device) - cache.padding.to(tokens.device).expand(len(tokens))[:, None]
            )
            padded = {"attention_mask": (place >= 0).long(), "position_ids": place[:, cache.length :].clamp(min=0)}
            cache.length = end
        made: Any = self.model(
            input_ids=tokens, past_key_values=past, use_cache=past is not None, output_hidden_states=bool(aux), **padded
        )
        final = made.last_hidden_state
        kept = [final if index == FINAL else made.hidden_states[index + 1] for index in aux]
        return self.lm_head(final), torch.cat(kept, -1) if aux else None


def initialise(module: nn.Module) -> None:
    """Initialise with normal weights, smaller ones for projections into the residual stream."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            continue
        small = name.removesuffix(".weight").endswith(("o_proj", "down_proj"))
        scale = 0.3 if small else 1.0
        nn.init.normal_(parameter, std=scale * (0.02 if "embed" in name else parameter.shape[-1] ** -0.5))
