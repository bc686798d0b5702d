"""Draft heads (token and hidden state in), and their unrolling over a whole sequence.

Each base slot q is unrolled independently: at step j it holds token t[q+1+j] at position q+j and predicts t[q+2+j]. It
attends to the step-0 keys at slots up to q, and to its own key of each later step. The hidden state of step 0 comes
from the target's captured states at q, that of later steps is the previous step's output.
(training-time test of EAGLE-3, arXiv 2503.01840)
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specmatrix.matrix.zoo.net import Attend, CausalNet, Table, rope_table, widened
from specmatrix.matrix.zoo.recipes import Shape


class Head(Protocol):
    """A draft head over the target's hidden states."""

    shape: Shape

    def features(self, captured: Tensor) -> Tensor:
        """The hidden state of step 0 from the target's captured states [B, T, A]."""
        ...

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """Hidden state for the next step [B, T, H] and logits [B, T, Vd], from tokens [B, T] and hidden [B, T, H]."""
        ...


class LanguageHead:
    """A language model as a draft head, which reads no states; its mask tokens are `mask_id`, None if it drafts one
    token after the other."""

    def __init__(self, net: CausalNet, mask_id: int | None) -> None:
        self.net, self.shape = net, net.shape
        self.mask = None if mask_id is None else (mask_id, torch.zeros(0))

    def features(self, captured: Tensor) -> Tensor:
        """Nothing of the target's states."""
        return captured[..., :0]

    def step(self, tokens: Tensor, hidden: Tensor, table: Table, attend: Attend) -> tuple[Tensor, Tensor]:
        """The unchanged `hidden`, and logits [B, T, V] for tokens [B, T]."""
        x = self.net.model.embed_tokens(tokens)
        for layer in self.net.model.layers:
            x = layer(x, position_embeddings=(table[0][None], table[1][None]), attend=attend)
        return hidden, self.net.lm_head(self.net.model.norm(x))


def mask_of(head: Head) -> tuple[int, Tensor] | None:
    """The mask token of a head that drafts in parallel and the hidden state [H] in place of its target's; else None."""
    found: tuple[int, Tensor] | None = getattr(head, "mask", None)
    return found


def whole(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over the whole sequence."""
    del index
    k, v = widened(k, q.shape[1]), widened(v, q.shape[1])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def unrolled_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B, H, S, D] attends to step-0 keys (causal by slot) and its slot's key of later steps; keys [B, Hkv, S, D]."""
    slots, heads = q.shape[2], q.shape[1]
    first = (q @ widened(keys[0], heads).transpose(-1, -2)).float()
    future = torch.ones(slots, slots, dtype=torch.bool, device=q.device).triu(1)
    scores = [first.masked_fill(future, float("-inf"))]
    scores += [(q.float() * widened(key, heads).float()).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat(scores, -1) * q.shape[-1] ** -0.5, -1).to(q.dtype)
    mixed = weights[..., :slots] @ widened(values[0], heads)
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., slots + step, None] * widened(value, heads)
    return mixed


def unroll(head: Head, tokens: Tensor, captured: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """State [B, S, H] and logits [B, S, Vd] of each step for tokens [B, T] and states [B, T, A]; S = T - 1 slots.

    The later steps of a head that drafts in parallel read its mask token and the hidden state of that.
    """
    mask = mask_of(head)
    slots = tokens.shape[1] - 1
    hidden = head.features(captured[:, :slots])
    kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    made: list[tuple[Tensor, Tensor]] = []

    def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = kept.setdefault(index, ([], []))
        keys.append(k)
        values.append(v)
        return unrolled_attention(q, keys, values)

    for step in range(steps):
        table = rope_table(head.shape, torch.arange(step, step + slots, device=tokens.device))
        words = ahead(tokens, 1 + step, slots)
        if step and mask is not None:
            words, hidden = torch.full_like(words, mask[0]), mask[1].expand(*words.shape, -1)
        made.append(head.step(words, hidden, table, attend))
        hidden = made[-1][0]
    return made


def rotated(heads: Sequence[Head], tokens: Tensor, captured: Tensor) -> list[tuple[Tensor, Tensor]]:
    """State and logits per head of a chain: head i reads t[q+1+i] and head i-1's state, and predicts t[q+2+i]."""
    slots = tokens.shape[1] - 1
    hidden = heads[0].features(captured[:, :slots])
    made: list[tuple[Tensor, Tensor]] = []
    for index, head in enumerate(heads):
        table = rope_table(head.shape, torch.arange(slots, device=tokens.device))
        made.append(head.step(ahead(tokens, 1 + index, slots), hidden, table, whole))
        hidden = made[-1][0]
    return made


def ahead(tokens: Tensor, by: int, slots: int) -> Tensor:
    """tokens [B, T] shifted left by `by`, padded with 0 and cut to `slots`."""
    return torch.nn.functional.pad(tokens[:, by:], (0, by), value=0)[:, :slots]
