"""Decoder models for training, with the parameter names of Hugging Face checkpoints (Llama and Qwen3 layouts)."""

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.recipes import Shape

# Index, among captured layers, of the target's state after its final norm.
FINAL: Final = -1

Table = tuple[Tensor, Tensor]


def rotary_dim(shape: Shape) -> int:
    """How many dimensions of a head are rotated."""
    own: int = getattr(shape, "qk_rope_head_dim", 0)
    return own or int(shape.head_dim * getattr(shape, "partial_rotary_factor", 1))


def rope_table(shape: Shape, positions: Tensor) -> Table:
    """cos and sin [..., rotary_dim] float32 for rotary embedding in half-split form."""
    width = rotary_dim(shape)
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * shape.rope_theta ** (-steps / width)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((angles.sin(), angles.sin()), -1)


def rotate(x: Tensor, table: Table) -> Tensor:
    """Apply rotary embedding to x [B, H, T, D] with a table of [T, D] or broadcastable."""
    wide = x.float()
    first, second = wide.chunk(2, -1)
    return (wide * table[0] + torch.cat((-second, first), -1) * table[1]).to(x.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)
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


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Cache:
    """KV cache per layer [B, H, capacity, D] for rows of equal length. whole: a model's own cache in place of it, and
    padding [B]: how many tokens in front of each row such a model must not see."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}
        self.whole: object = None
        self.padding = torch.zeros(1, dtype=torch.int64)

    def extend(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v of layer `index` after `length`; return all keys and values of that layer."""
        end = self.length + k.shape[2]
        if index not in self.stored:
            # Takes the dtype of the prefill's k and v.
            sizes = [(*x.shape[:2], self.capacity, x.shape[3]) for x in (k, v)]
            self.stored[index] = (k.new_empty(sizes[0]), v.new_empty(sizes[1]))
        for kept, new in zip(self.stored[index], (k, v), strict=True):
            kept[:, :, self.length : end] = new
        keys, values = self.stored[index]
        return keys[:, :, :end], values[:, :, :end]


def widened(x: Tensor, heads: int) -> Tensor:
    """x [B, Hkv, T, D] with each head repeated for the query heads of its group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def attended(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention [B, H, T, Dv]; q are the last T positions. `window`: sliding window in tokens, 0 for none."""
    length, total = q.shape[2], k.shape[2]
    if length == 1:
        if window:
            k, v = k[:, :, -window:], v[:, :, -window:]
        # With one query per head, a group's heads become the queries of its KV head, so that no key is repeated.
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[3])
        return F.scaled_dot_product_attention(grouped, k, v).reshape(len(q), -1, 1, v.shape[3])
    k, v = widened(k, q.shape[1]), widened(v, q.shape[1])
    if length == total and not (window and window < total):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    behind = torch.arange(total - length, total, device=q.device)[:, None] - torch.arange(total, device=q.device)
    seen = (behind >= 0) & (behind < (window or total))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Layer(nn.Module):
    """One decoder layer. `window`: sliding window in tokens, the query's own included; 0 for none."""

    def __init__(self, shape: Shape, attention: Attention, mlp: nn.Module, window: int = 0) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = mlp
        self.window = window

    def forward(self, x: Tensor, table: Table, cache: Cache | None, index: int) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), table)
        if cache is not None:
            k, v = cache.extend(index, k, v)
        return self.onward(x, attended(q, k, v, self.window))

    def onward(self, x: Tensor, heads: Tensor) -> Tensor:
        """x [B, T, H] behind this layer, from what its attention's heads [B, H, T, Dv] found."""
        x = x + self.self_attn.merge(heads)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class CausalNet(nn.Module):
    """A language model of `depth` layers."""

    def __init__(self, shape: Shape, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.shape, self.depth, self.hidden = shape, shape.num_hidden_layers, shape.hidden_size
        self.model = Body(shape, layers)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        initialise(self)
        if shape.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, aux: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V] for tokens [B, T], and concatenated outputs of the layers in `aux` [B, T, len(aux)*H].

        FINAL in `aux` is the state after the final norm.
        """
        start = 0 if cache is None else cache.length
        table = rope_table(self.shape, torch.arange(start, start + tokens.shape[1], device=tokens.device))
        x = self.model.embed_tokens(tokens)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.model.layers):
            x = layer(x, table, cache, index)
            kept[index] = x
        if cache is not None:
            cache.length += tokens.shape[1]
        kept[FINAL] = final = self.model.norm(x)
        captured = torch.cat([kept[index] for index in aux], -1) if aux else None
        return self.lm_head(final), captured


class DenseNet(CausalNet):
    """The layouts of LlamaForCausalLM and, with normed queries and keys, Qwen3ForCausalLM."""

    def __init__(self, shape: Shape) -> None:
        kinds = getattr(shape, "layer_types", ["sliding_attention"] * shape.num_hidden_layers)
        window = getattr(shape, "sliding_window", None) or 0
        layers = [
            Layer(
                shape,
                Attention(shape, shape.hidden_size),
                MLP(shape.hidden_size, shape.intermediate_size),
                window if kind == "sliding_attention" else 0,
            )
            for kind in kinds
        ]
        super().__init__(shape, layers)


def initialise(module: nn.Module) -> None:
    """Initialise with normal weights, smaller ones for projections into the residual stream."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            continue
        small = name.removesuffix(".weight").endswith(("o_proj", "down_proj"))
        scale = 0.3 if small else 1.0
        nn.init.normal_(parameter, std=scale * (0.02 if "embed" in name else parameter.shape[-1] ** -0.5))
