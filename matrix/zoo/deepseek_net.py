"""A DeepSeek-V3 model for training, with MLA, MoE and MTP layers (`bundled`).

Parameter names are those of DeepseekV3ForCausalLM, except that a layer's experts are stacked [E, out, in] here and
unstacked when the checkpoint is written. (DeepSeek-V3, arXiv 2412.19437)
"""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.heads import Attend
from specmatrix.matrix.zoo.net import MLP, CausalNet, Layer, Projections, RMSNorm, Table, initialise
from specmatrix.matrix.zoo.recipes import Shape

# The inner norms of MLA have a fixed epsilon, independent of the model's.
LATENT_EPS: Final = 1e-6
# Step size of an expert's bias towards an even load (arXiv 2408.15664).
BALANCE_RATE: Final = 1e-3


def rotate_pairs(x: Tensor, table: Table) -> Tensor:
    """Interleaved rotary embedding of x [B, H, T, D]; the result holds all even dimensions, then all odd ones."""
    half = x.shape[-1] // 2
    cos, sin = table[0][..., :half], table[1][..., :half]
    first, second = x.float()[..., 0::2], x.float()[..., 1::2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class LatentAttention(Projections):
    """Multi-head latent attention in expanded form: every head's keys and values come from one latent row."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_a_proj = nn.Linear(shape.hidden_size, shape.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(shape.q_lora_rank, LATENT_EPS)
        self.q_b_proj = nn.Linear(
            shape.q_lora_rank, shape.num_attention_heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim), bias=False
        )
        self.kv_a_proj_with_mqa = nn.Linear(shape.hidden_size, shape.kv_lora_rank + shape.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank, LATENT_EPS)
        self.kv_b_proj = nn.Linear(
            shape.kv_lora_rank, shape.num_attention_heads * (shape.qk_nope_head_dim + shape.v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(shape.num_attention_heads * shape.v_head_dim, shape.hidden_size, bias=False)

    def project(self, x: Tensor, table: Table) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [B, H, T, plain_dim + head_dim], v [B, H, T, value_dim]."""
        shape, (batch, length) = self.shape, x.shape[:2]
        q = (
            self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
            .view(batch, length, shape.num_attention_heads, -1)
            .transpose(1, 2)
        )
        plain, turning = q.split((shape.qk_nope_head_dim, shape.qk_rope_head_dim), -1)
        latent, shared = self.kv_a_proj_with_mqa(x).split((shape.kv_lora_rank, shape.qk_rope_head_dim), -1)
        made = (
            self.kv_b_proj(self.kv_a_layernorm(latent))
            .view(batch, length, shape.num_attention_heads, -1)
            .transpose(1, 2)
        )
        keys, values = made.split((shape.qk_nope_head_dim, shape.v_head_dim), -1)
        one = rotate_pairs(shared[:, None], table).expand(-1, shape.num_attention_heads, -1, -1)
        return torch.cat((plain, rotate_pairs(turning, table)), -1), torch.cat((keys, one), -1), values

    def merge(self, heads: Tensor) -> Tensor:
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out


class Router(nn.Module):
    """Sigmoid scores; selects groups by their two best biased scores, then the best experts of these groups."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.n_routed_experts, shape.hidden_size))
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Expert weights [..., E] float32, 0 for experts that are not selected."""
        shape = self.shape
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.weight.float()).sigmoid()
        biased = (scores + self.e_score_correction_bias).detach()
        groups = biased.view(*biased.shape[:-1], shape.n_group, -1)
        best = groups.topk(2, -1)[0].sum(-1).topk(shape.topk_group, -1)[1]
        open_groups = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0).bool()
        allowed = biased.masked_fill(~open_groups.repeat_interleave(groups.shape[-1], -1), float("-inf"))
        chosen = torch.zeros_like(scores).scatter(-1, allowed.topk(shape.num_experts_per_tok, -1)[1], 1.0)
        if self.training:
            load = chosen.flatten(0, -2).mean(0)
            self.e_score_correction_bias += BALANCE_RATE * (load.mean() - load).sign()
        picked = scores * chosen
        routed: Tensor = shape.routed_scaling_factor * picked / (picked.sum(-1, keepdim=True) + 1e-20)
        return routed


class Experts(nn.Module):
    """All experts on all rows as one wide feed-forward, scaled per expert, so that no row depends on another."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(
            torch.empty(shape.n_routed_experts, shape.moe_intermediate_size, shape.hidden_size)
        )
        self.up_proj = nn.Parameter(torch.empty(shape.n_routed_experts, shape.moe_intermediate_size, shape.hidden_size))
        self.down_proj = nn.Parameter(
            torch.empty(shape.n_routed_experts, shape.hidden_size, shape.moe_intermediate_size)
        )

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        inner = F.silu(F.linear(x, self.gate_proj.flatten(0, 1))) * F.linear(x, self.up_proj.flatten(0, 1))
        scaled = (inner.view(*weights.shape, -1) * weights[..., None]).flatten(-2)
        return F.linear(scaled.to(inner.dtype), self.down_proj.transpose(0, 1).flatten(1))


class MixtureMLP(nn.Module):
    """Routed and shared experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.shared_experts = MLP(shape.hidden_size, shape.n_shared_experts * shape.moe_intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.experts(x, self.gate(x)) + self.shared_experts(x)
        return out


class BundledLayer(Layer[LatentAttention]):
    """A multi-token-prediction layer: projects embedding and hidden state together, then one decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, LatentAttention(shape), MixtureMLP(shape))
        self.enorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.hnorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        # The norm before the shared head; the head itself is the model's.
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(shape.hidden_size, shape.rms_norm_eps)})


class DeepseekNet(CausalNet):
    """The model and its MTP layers, which follow the model's in `model.layers`."""

    def __init__(self, shape: Shape) -> None:
        width, inner, dense = shape.hidden_size, shape.intermediate_size, shape.first_k_dense_replace
        layers = [
            Layer(shape, LatentAttention(shape), MLP(width, inner) if index < dense else MixtureMLP(shape))
            for index in range(shape.num_hidden_layers)
        ]
        layers += [BundledLayer(shape) for _ in range(shape.num_nextn_predict_layers)]
        super().__init__(shape, layers)
        initialise(self)

    @property
    def prediction(self) -> nn.Module:
        """The layers that are trained on the model's own answers."""
        return self.model.layers[self.depth :]

    def bundled(self) -> list["BundledHead"]:
        """Each MTP layer as a draft head."""
        return [BundledHead(self, index) for index in range(self.shape.num_nextn_predict_layers)]


class BundledHead:
    """One MTP layer as a draft head; the next step reads its state after the shared head's norm."""

    def __init__(self, net: DeepseekNet, index: int) -> None:
        self.net, self.shape = net, net.shape
        layer = net.model.layers[net.depth + index]
        assert isinstance(layer, BundledLayer)
        self.layer = layer

    def features(self, captured: Tensor) -> Tensor:
        """The target's final state, unchanged."""
        return captured

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """State [B, T, H] and logits [B, T, V] for tokens [B, T] and hidden [B, T, H]."""
        layer = self.layer
        word = layer.enorm(self.net.model.embed_tokens(tokens))
        x = layer.eh_proj(torch.cat((word, layer.hnorm(hidden)), -1))
        x = layer.onward(x, attend(0, *layer.self_attn.project(layer.input_layernorm(x), table)))
        state = layer.shared_head["norm"](x)
        return state, self.net.lm_head(state)
