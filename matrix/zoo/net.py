"""A Llama-layout model for training: parameter names are those of the Hugging Face checkpoint."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matrix.zoo.recipes import Shape


def rope_table(shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [..., head_dim] float32 of rotary embedding in the half-split form."""
    steps = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * shape.rope_theta ** (-steps / shape.head_dim)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((angles.sin(), angles.sin()), -1)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, H, T, D] turned by the table's angles ([T, D] or broadcastable)."""
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
        # Under autocast each linear would cast its input anew; once is enough.
        kind = x.device.type
        return normed.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else normed


class Attention(nn.Module):
    """Projections of grouped-query attention; `width` is the input's (twice the hidden width in the EAGLE3 head)."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def project(self, x: Tensor, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, H, T, D], k and v [B, Hkv, T, D] of x [B, T, width], rotated."""
        batch, length = x.shape[:2]
        q = self.q_proj(x).view(batch, length, self.shape.heads, self.shape.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.shape.kv_heads, self.shape.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.shape.kv_heads, self.shape.head_dim).transpose(1, 2)
        return rotate(q, table), rotate(k, table), v

    def merge(self, heads: Tensor) -> Tensor:
        """[B, H, T, D] back to the hidden width."""
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Cache:
    """Keys and values of rows that all have the same length: [layers, B, Hkv, capacity, D]."""

    def __init__(self, shape: Shape, rows: int, capacity: int, device: torch.device) -> None:
        size = (shape.layers, rows, shape.kv_heads, capacity, shape.head_dim)
        self.keys = torch.empty(size, device=device)
        self.values = torch.empty(size, device=device)
        self.length = 0


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, shape.hidden)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], cache: Cache | None, index: int) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), table)
        causal = True
        if cache is not None:
            end = cache.length + k.shape[2]
            cache.keys[index, :, :, cache.length : end] = k
            cache.values[index, :, :, cache.length : end] = v
            k, v, causal = cache.keys[index, :, :, :end], cache.values[index, :, :, :end], cache.length == 0
        if q.shape[2] == 1:
            # One query per head: the heads of a group become the queries of their key head, so nothing is repeated.
            mixed = F.scaled_dot_product_attention(q.reshape(len(q), k.shape[1], -1, q.shape[3]), k, v).reshape(q.shape)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        x = x + self.self_attn.merge(mixed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)


class LlamaNet(nn.Module):
    """Llama for causal language modelling, in the checkpoint layout of LlamaForCausalLM."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        initialise(self)

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, aux: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V] for tokens [B, T], and outputs of the layers in `aux` side by side [B, T, len(aux)*H]."""
        start = 0 if cache is None else cache.length
        table = rope_table(self.shape, torch.arange(start, start + tokens.shape[1], device=tokens.device))
        x = self.model.embed_tokens(tokens)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.model.layers):
            x = layer(x, table, cache, index)
            kept[index] = x
        if cache is not None:
            cache.length += tokens.shape[1]
        captured = torch.cat([kept[index] for index in aux], -1) if aux else None
        return self.lm_head(self.model.norm(x)), captured


def initialise(module: nn.Module) -> None:
    """Normal weights; projections back into the residual stream start small."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            continue
        small = name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = 0.3 if small else 1.0
        nn.init.normal_(parameter, std=scale * (0.02 if "embed" in name else parameter.shape[1] ** -0.5))
