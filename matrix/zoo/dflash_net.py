"""A draft that predicts a whole block in one forward, from the last known token followed by mask tokens, attending to
projections of the target's hidden states (DFlash; checkpoint layout of z-lab's DFlashDraftModel)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.eagle_net import Shared
from specmatrix.matrix.zoo.net import Layer, RMSNorm, Table, initialise, rope_table, rotate, widened
from specmatrix.matrix.zoo.recipes import Recipe


class DflashNet(nn.Module):
    """Qwen3-style layers over context keys projected from the target's states; embedding and head are the target's.
    first: the first row of a block that predicts a token."""

    first = 1

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__()
        self.shape, self.block, self.mask_id, self.shared = recipe.shape, recipe.block, recipe.mask_id, shared
        shape = self.shape
        self.fc = nn.Linear(shared.width(recipe), shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        initialise(self)

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., D, V] of drafts at hidden [..., D, H]; the tokens before them, `previous`, do not matter."""
        del previous
        return F.linear(hidden, self.shared.head)

    def around(self, layer: nn.Module, part: str, x: Tensor, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The input of a sublayer ("attention" or "mlp") from its normed input x [B, A * block, H], and what is done to
        its output."""
        del layer, part, block
        return x, lambda out: out

    def rows(self, tokens: Tensor, captured: Tensor, anchors: Tensor, block: int | None = None) -> Tensor:
        """Hidden states [B, A, block - 1, H] that predict the tokens after each anchor.

        tokens [B, T]; captured [B, T, S]: the target's states at these tokens; anchors [B, A]: positions of the last
        known token. A block attends to the context before its anchor and to all of itself; `block`: a length below
        the net's own.
        """
        drafts = (block or self.block) - 1
        length = drafts + self.first
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
            normed, finish = self.around(layer, "attention", layer.input_layernorm(x), length)
            before, own = attention.keys_values(context, over_context), attention.keys_values(normed, over_blocks)
            k, v = (
                widened(torch.cat((old, new.to(old.dtype)), 2), self.shape.num_attention_heads)
                for old, new in zip(before, own, strict=True)
            )
            q = rotate(attention.queries(normed), over_blocks).to(k.dtype)
            x = x + finish(attention.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))
            normed, finish = self.around(layer, "mlp", layer.post_attention_layernorm(x), length)
            x = x + finish(layer.mlp(normed))
        out: Tensor = self.norm(x)
        return out.view(*places.shape, -1)[:, :, self.first :]


def _seen(anchors: Tensor, length: int, block: int) -> Tensor:
    """Attention mask, bool [B, 1, A * block, length + A * block]: what each block position attends to."""
    each = anchors.repeat_interleave(block, 1)
    context = torch.arange(length, device=anchors.device) < each[..., None]
    number = torch.arange(each.shape[1], device=anchors.device) // block
    own = (number[:, None] == number).expand(len(anchors), -1, -1)
    return torch.cat((context, own), -1)[:, None]
