"""A draft that predicts a whole block in one forward, from the last known token followed by mask tokens, attending to
projections of the target's hidden states (DFlash; checkpoint layout of z-lab's DFlashDraftModel)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.eagle_net import Shared
from specmatrix.matrix.zoo.net import MLP, Attention, Layer, RMSNorm, Table, initialise, rope_table, rotate, widened
from specmatrix.matrix.zoo.recipes import ModelShape


class DflashNet(nn.Module):
    """Qwen3-style layers over context keys projected from the target's states; embedding and head are the target's."""

    def __init__(self, shape: ModelShape, captured_width: int, block: int, mask_id: int, shared: Shared) -> None:
        super().__init__()
        self.shape, self.block, self.mask_id, self.shared = shape, block, mask_id, shared
        self.fc = nn.Linear(captured_width, shape.hidden, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(
            Layer(shape.hidden, shape.eps, Attention(shape, shape.hidden), MLP(shape.hidden, shape.intermediate))
            for _ in range(shape.layers)
        )
        self.norm = RMSNorm(shape.hidden, shape.eps)
        initialise(self)

    def forward(self, tokens: Tensor, captured: Tensor, anchors: Tensor, block: int | None = None) -> Tensor:
        """Logits [B, A, block - 1, V] of the tokens after each anchor.

        tokens [B, T]; captured [B, T, S]: the target's states at these tokens; anchors [B, A]: positions of the last
        known token. A block attends to the context before its anchor and to all of itself; `block`: a length below
        the net's own.
        """
        length = block or self.block
        context = self.hidden_norm(self.fc(captured))
        places = anchors[..., None] + torch.arange(length, device=tokens.device)
        masked = torch.full_like(places, self.mask_id)
        masked[..., 0] = tokens.gather(1, anchors)
        x = F.embedding(masked.flatten(1), self.shared.embedding)
        seen = _seen(anchors, tokens.shape[1], length)
        over_context = rope_table(self.shape, torch.arange(tokens.shape[1], device=tokens.device))
        over_blocks: Table = tuple(each[:, None] for each in rope_table(self.shape, places.flatten(1)))  # type: ignore[assignment]  # two of them
        for layer in self.layers:
            assert isinstance(layer, Layer)
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            before, own = attention.keys_values(context, over_context), attention.keys_values(normed, over_blocks)
            k, v = (
                widened(torch.cat((old, new.to(old.dtype)), 2), self.shape.heads)
                for old, new in zip(before, own, strict=True)
            )
            q = rotate(attention.queries(normed), over_blocks).to(k.dtype)
            x = x + attention.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        rows = self.norm(x).unflatten(1, places.shape[1:])[:, :, 1:]
        return F.linear(rows, self.shared.head)


def _seen(anchors: Tensor, length: int, block: int) -> Tensor:
    """Attention mask, bool [B, 1, A * block, length + A * block]: what each block position attends to."""
    each = anchors.repeat_interleave(block, 1)
    context = torch.arange(length, device=anchors.device) < each[..., None]
    number = torch.arange(each.shape[1], device=anchors.device) // block
    own = (number[:, None] == number).expand(len(anchors), -1, -1)
    return torch.cat((context, own), -1)[:, None]
