"""The training losses of each kind of model."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specmatrix.matrix.zoo.bundled_net import BundledNet
from specmatrix.matrix.zoo.corpus import Batch
from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.dspark_net import DsparkNet
from specmatrix.matrix.zoo.heads import Head, rotated, unroll
from specmatrix.matrix.zoo.net import FINAL, CausalNet

STEP_DECAY: Final = 0.9
# Weight of the MTP layers' loss while the target itself is trained (DeepSeek-V3, section 4.2).
BUNDLED_SHARE: Final = 0.3
# Weight of the distance between a draft's and the target's hidden state, added to cross-entropy.
REGRESSION: Final = 0.3
# Training blocks per sequence.
ANCHORS: Final = 12


def predicted(batch: Batch, first: Tensor | int, prompt_weight: float) -> Tensor:
    """Loss weights [B, T-1] of token i+1: 1 from token `first` of the answer, `prompt_weight` before, 0 for padding."""
    index = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)[None, :]
    weight = torch.where(index >= batch.prompts[:, None] + first, 1.0, prompt_weight)
    return weight * (index < batch.lengths[:, None])


def cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross-entropy; logits [B, S, V], labels (ids [B, S] or distributions [B, S, V]), weight [B, S]."""
    goal = labels.flatten() if labels.dim() == 2 else labels.flatten(0, 1)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), goal, reduction="none")
    return (losses * weight.flatten()).sum() / weight.sum().clamp(min=1.0)


def language(net: CausalNet, batch: Batch, prompt_weight: float) -> Tensor:
    """Cross-entropy of the next token."""
    logits, _ = net(batch.tokens[:, :-1])
    return cross_entropy(logits, batch.tokens[:, 1:], predicted(batch, 0, prompt_weight))


def multi_token(net: BundledNet, batch: Batch, prompt_weight: float) -> Tensor:
    """Cross-entropy of the next token, plus that of later tokens predicted by the chain of MTP layers."""
    logits, final = net(batch.tokens, aux=(FINAL,))
    weight = predicted(batch, 0, prompt_weight)
    total = cross_entropy(logits[:, :-1], batch.tokens[:, 1:], weight)
    heads = net.bundled()
    for index, (_, guesses) in enumerate(rotated(heads, batch.tokens, final)):
        slots = batch.tokens.shape[1] - 2 - index
        loss = cross_entropy(guesses[:, :slots], batch.tokens[:, 2 + index :], weight[:, 1 + index :])
        total = total + BUNDLED_SHARE / len(heads) * loss
    return total


def distilled(net: CausalNet, target: CausalNet, batch: Batch, prompt_weight: float, without_first: bool) -> Tensor:
    """Half on the target's distribution, half on the actual token; `without_first` drops BOS from the draft's input."""
    with torch.no_grad():
        goal, _ = target(batch.tokens[:, :-1])
    skip = int(without_first)
    logits, _ = net(batch.tokens[:, skip:-1])
    weight = predicted(batch, 0, prompt_weight)[:, skip:]
    soft = cross_entropy(logits, goal[:, skip:].float().softmax(-1), weight)
    return (soft + cross_entropy(logits, batch.tokens[:, 1 + skip :], weight)) * 0.5


def _ahead(
    made: list[tuple[Tensor, Tensor]], goal: Tensor, place: Tensor, weight: Tensor, final: Tensor | None
) -> Tensor:
    """Loss of step j at slot q, which predicts token q+2+j: goal [B, T, Vd], place [B, T] ids in the draft vocabulary,
    weight [B, T-1] for token i+1; `final` [B, T, H]: the target's state, which the draft's state should match."""
    total = torch.zeros((), device=goal.device)
    for step, (state, logits) in enumerate(made):
        slots = place.shape[1] - 2 - step
        seen = weight[:, 1 + step :]
        soft = cross_entropy(logits[:, :slots], goal[:, 1 + step : 1 + step + slots], seen)
        loss = (soft + cross_entropy(logits[:, :slots], place[:, 2 + step :], seen)) * 0.5
        if final is not None:
            apart = F.smooth_l1_loss(
                state[:, :slots].float(), final[:, 1 + step : 1 + step + slots].float(), reduction="none"
            ).mean(-1)
            loss = loss + REGRESSION * (apart * seen).sum() / seen.sum().clamp(min=1.0)
        total = total + STEP_DECAY**step * loss
    return total / sum(STEP_DECAY**step for step in range(len(made)))


def unrolled(
    head: Head, target: CausalNet, batch: Batch, aux: tuple[int, ...], kept: Tensor, steps: int, resemble: bool
) -> Tensor:
    """Training-time test: per step half on the target's distribution over the draft vocabulary, half on the token.

    Tokens outside the draft vocabulary `kept` [Vd] (ascending target ids) cannot be proposed and carry no loss.
    `resemble`: also regress the head's state to the target's final state (EAGLE).
    """
    with torch.no_grad():
        goal, states = target(batch.tokens, aux=aux)
        assert states is not None
        goal = goal.float()[..., kept].softmax(-1)
        place = torch.searchsorted(kept, batch.tokens).clamp(max=len(kept) - 1)
        weight = predicted(batch, 1, 0.0) * (kept[place] == batch.tokens)[:, 1:]
    return _ahead(unroll(head, batch.tokens, states, steps), goal, place, weight, states if resemble else None)


def bundled(net: BundledNet, batch: Batch, steps: int) -> Tensor:
    """Loss of both uses of MTP layers: the first one unrolled, and all of them as a chain."""
    with torch.no_grad():
        goal, final = net(batch.tokens, aux=(FINAL,))
        assert final is not None
        goal, weight = goal.float().softmax(-1), predicted(batch, 1, 0.0)
    heads = net.bundled()
    alone = _ahead(unroll(heads[0], batch.tokens, final, steps), goal, batch.tokens, weight, None)
    return alone + _ahead(rotated(heads, batch.tokens, final), goal, batch.tokens, weight, None)


def blocks(net: DflashNet, target: CausalNet, batch: Batch, aux: tuple[int, ...], coin: torch.Generator) -> Tensor:
    """Blocks after random tokens of the answer: half on the target's distribution, half on the actual token."""
    ahead = net.block - 1
    with torch.no_grad():
        goal, states = target(batch.tokens, aux=aux)
        # An anchor needs a next token; positions past the end are padding and carry no loss.
        span = (batch.lengths - 1 - batch.prompts).clamp(min=1)[:, None]
        drawn = torch.rand(len(batch.tokens), ANCHORS, generator=coin, device=batch.tokens.device)
        anchors = batch.prompts[:, None] + (drawn * span).long()
        places = anchors[..., None] + torch.arange(1, net.block, device=batch.tokens.device)
        inside = places.clamp(max=batch.tokens.shape[1] - 1).flatten(1)
        decay = STEP_DECAY ** torch.arange(ahead, device=batch.tokens.device)
        weight = ((places < batch.lengths[:, None, None]) * decay).flatten(1)
        soft = goal.float().softmax(-1).gather(1, (inside - 1)[..., None].expand(-1, -1, goal.shape[-1]))
    hidden, previous = net.rows(batch.tokens, states, anchors), batch.tokens.gather(1, inside - 1).view_as(places)
    logits = net.corrected(hidden, previous).flatten(1, 2)
    hard = cross_entropy(logits, batch.tokens.gather(1, inside), weight)
    loss = (cross_entropy(logits, soft, weight) + hard) * 0.5
    if not isinstance(net, DsparkNet):
        return loss
    # A draft from q is accepted with probability sum(min(p, q)).
    share = torch.minimum(logits.detach().float().softmax(-1), soft).sum(-1).clamp(max=1.0)
    sure = F.binary_cross_entropy_with_logits(net.sure(hidden, previous).flatten(1).float(), share, reduction="none")
    return loss + (sure * weight).sum() / weight.sum().clamp(min=1.0)
