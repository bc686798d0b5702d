"""A block draft whose tokens are chosen from left to right by a Markov head, with a confidence for each (DSpark,
arXiv 2607.05147; checkpoint layout of SGLang's DSparkDraftModel)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.eagle_net import Shared
from specmatrix.matrix.zoo.net import initialise
from specmatrix.matrix.zoo.recipes import Recipe, Shape


class Markov(nn.Module):
    """Adds to a draft's logits what the token before it makes likely, at a low rank."""

    def __init__(self, kind: str, rank: int, shape: Shape) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(shape.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, shape.vocab_size, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(shape.hidden_size + rank, rank)
        if kind == "rnn":
            self.joint_proj = nn.Linear(shape.hidden_size + 2 * rank, 3 * rank)
        initialise(self)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The addition [..., D, V] for drafts at hidden [..., D, H], each after its `previous` [..., D]."""
        code = self.markov_w1(previous)
        if self.kind == "gated":
            code = self.gate_proj(torch.cat((hidden, code), -1)).sigmoid() * code
        if self.kind == "rnn":
            state, codes = torch.zeros_like(code[..., 0, :]), []
            for each, row in zip(code.unbind(-2), hidden.unbind(-2), strict=True):
                keep, new, out = self.joint_proj(torch.cat((state, each, row), -1)).chunk(3, -1)
                state = keep.sigmoid() * state + (1 - keep.sigmoid()) * new.tanh()
                codes.append(out.tanh())
            code = torch.stack(codes, -2)
        added: Tensor = self.markov_w2(code)
        return added


class Confidence(nn.Module):
    """How likely each draft is right, given that those before it are; as a logit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)
        initialise(self)


class DsparkNet(DflashNet):
    """`block`: nodes of a round, one more than its drafts."""

    def __init__(self, recipe: Recipe, shared: Shared) -> None:
        super().__init__(recipe, shared)
        heads = recipe.heads
        assert heads is not None
        self.first = int(not heads.from_anchor)
        self.markov_head = Markov(heads.kind, heads.rank, self.shape)
        self.confidence_head = Confidence(self.shape.hidden_size + heads.rank)

    def corrected(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logits [..., D, V] of drafts at hidden [..., D, H], each after its `previous` [..., D]."""
        added: Tensor = self.markov_head(hidden, previous)
        return F.linear(hidden, self.shared.head) + added

    def sure(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The logit [..., D] of each draft's confidence."""
        features = torch.cat((hidden, self.markov_head.markov_w1(previous).to(hidden.dtype)), -1)
        raw: Tensor = self.confidence_head.proj(features)
        return raw[..., 0]
