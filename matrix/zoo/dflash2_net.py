"""DFLASH2's draft (z-lab's DFlash2DraftModel): DFLASH's block, with convolutions along it and a selector of pairs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.eagle_net import Shared
from specmatrix.matrix.zoo.recipes import Recipe


class GroupedConv(nn.Module):
    """y_i = sum over taps t of (base_t + d_it) * x_(i-t) within a block, once for a sublayer's input and once for its
    output; d_it, one number for each group of channels, is a projection of the sublayer's input. The identity at first.
    """

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * hidden // group, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def kernels(self, x: Tensor) -> Tensor:
        """x [..., H] -> the kernels of the input and the output [..., 2, taps, H]."""
        shape = 2, self.taps, x.shape[-1] // self.group
        found: Tensor = self.base_kernel + self.kernel_projection(x).view(*x.shape[:-1], *shape).repeat_interleave(
            self.group, -1
        )
        return found

    def mixed(self, x: Tensor, kernel: Tensor) -> Tensor:
        """x [..., block, H] with kernel [..., block, taps, H]; 0 before the block."""
        length = x.shape[-2]
        padded = F.pad(x, (0, 0, self.taps - 1, 0))
        parts = [padded[..., self.taps - 1 - t :, :][..., :length, :] * kernel[..., t, :] for t in range(self.taps)]
        return torch.stack(parts).sum(0)


class Selector(nn.Module):
    """Scores a pair of neighbouring tokens p, c at hidden h by sum(A[p] * (P h) * B[c]). Zero at first."""

    def __init__(self, vocab: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Scores [..., V] of the tokens after `previous` [...] at hidden [..., H]."""
        code = F.embedding(previous, self.predecessor_codebook) * self.hidden_projection(hidden)
        return F.linear(code, self.successor_codebook)


class Dflash2Net(DflashNet):
    """While it is trained all tokens are candidates, else the `parts.selector_top_k` likeliest ones of each row."""

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__(recipe, shared)
        parts, hidden = recipe.dflash2, recipe.shape.hidden_size
        assert parts is not None
        self.candidates = parts.selector_top_k
        for layer in self.layers:
            for part in ("attention", "mlp"):
                layer.add_module(f"{part}_conv", GroupedConv(hidden, parts.conv_kernel_size, parts.conv_group_size))
        self.candidate_selector = Selector(recipe.shape.vocab_size, hidden, parts.selector_rank)

    def around(self, layer: nn.Module, part: str, x: Tensor, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """As DFLASH's: convolved."""
        conv = getattr(layer, f"{part}_conv")
        assert isinstance(conv, GroupedConv)
        shape = len(x), -1, block, x.shape[-1]
        blocks = x.view(shape)
        kernels = conv.kernels(blocks)

        def finish(out: Tensor) -> Tensor:
            return conv.mixed(out.view(shape), kernels[..., 1, :, :]).flatten(1, 2)

        return conv.mixed(blocks, kernels[..., 0, :, :]).flatten(1, 2), finish

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., V] of drafts at hidden [..., H], each after its `previous` [...]; -inf if no candidate."""
        logits = F.linear(hidden, self.shared.head)
        scores: Tensor = logits + self.candidate_selector(hidden, previous)
        if self.training:
            return scores
        ids = logits.topk(self.candidates).indices
        return torch.full_like(scores, -torch.inf).scatter(-1, ids, scores.gather(-1, ids))
