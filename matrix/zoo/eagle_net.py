"""The EAGLE3 head with its training-time test: several draft steps unrolled on one sequence.

A base slot q rolls out on its own: at step j it holds token t[q+1+j] at position q+j and predicts t[q+2+j]. It sees
the keys of step 0 at slots up to q, and of each later step only its own. The hidden state of step 0 is `fc` of the
target's auxiliary states at q; that of later steps is the head's own output stream, before the final norm.
(EAGLE-3, arXiv 2503.01840)
"""

import torch
from torch import Tensor, nn

from matrix.zoo.net import MLP, Attention, RMSNorm, initialise, rope_table
from matrix.zoo.recipes import Shape


def unrolled_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B, H, S, D] over step-0 keys (causal by slot) and its slot's key of each later step; keys[i] [B, 1, S, D]."""
    slots = q.shape[2]
    first = (q @ keys[0].transpose(-1, -2)).float()
    future = torch.ones(slots, slots, dtype=torch.bool, device=q.device).triu(1)
    scores = [first.masked_fill(future, float("-inf"))]
    scores += [(q.float() * key.float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat(scores, -1) * q.shape[-1] ** -0.5, -1).to(q.dtype)
    mixed = weights[..., :slots] @ values[0]
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., slots + step, None] * value
    return mixed


class MidLayer(nn.Module):
    """The one decoder layer of the head; attention reads the normed embedding beside the normed hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.hidden)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)


class EagleNet(nn.Module):
    """EAGLE3 head in the checkpoint layout of LlamaForCausalLMEagle3 (d2t and t2d are written when it is saved)."""

    def __init__(self, shape: Shape, aux_width: int, draft_vocab: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.fc = nn.Linear(aux_width, shape.hidden, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, draft_vocab, bias=False)
        initialise(self)

    def unroll(self, tokens: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Draft logits [B, S, Vd] of each step for tokens [B, T] and aux states [B, T, A]; S = T - 1 base slots."""
        layer = self.midlayer
        slots = tokens.shape[1] - 1
        hidden = self.fc(aux[:, :slots])
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits: list[Tensor] = []
        for step in range(steps):
            shifted = nn.functional.pad(tokens[:, 1 + step :], (0, min(step, slots)), value=0)[:, :slots]
            table = rope_table(self.shape, torch.arange(step, step + slots, device=tokens.device))
            joined = torch.cat((layer.input_layernorm(self.embed_tokens(shifted)), layer.hidden_norm(hidden)), -1)
            q, k, v = layer.self_attn.project(joined, table)
            keys.append(k)
            values.append(v)
            hidden = hidden + layer.self_attn.merge(unrolled_attention(q, keys, values))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
