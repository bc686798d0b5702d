"""What each kind of model is trained to minimise."""

import torch
import torch.nn.functional as F
from torch import Tensor

from matrix.zoo.corpus import Batch
from matrix.zoo.eagle_net import EagleNet
from matrix.zoo.net import LlamaNet

STEP_DECAY = 0.9


def predicted(batch: Batch, first: Tensor | int, prompt_weight: float) -> Tensor:
    """Weights [B, T-1] of predicting token i+1: 1 from token `first` of the answer, else `prompt_weight`; pads 0."""
    index = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)[None, :]
    weight = torch.where(index >= batch.prompts[:, None] + first, 1.0, prompt_weight)
    return weight * (index < batch.lengths[:, None])


def language(net: LlamaNet, batch: Batch, prompt_weight: float) -> Tensor:
    """Cross-entropy of the next token."""
    logits, _ = net(batch.tokens[:, :-1])
    weight = predicted(batch, 0, prompt_weight)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.tokens[:, 1:].flatten(), reduction="none")
    return (losses * weight.flatten()).sum() / weight.sum()


def distilled(net: LlamaNet, target: LlamaNet, batch: Batch, prompt_weight: float, without_first: bool) -> Tensor:
    """Half the target's distribution, half its chosen token; `without_first` drops the BOS from the draft's input."""
    with torch.no_grad():
        goal, _ = target(batch.tokens[:, :-1])
    skip = int(without_first)
    logits, _ = net(batch.tokens[:, skip:-1])
    weight = predicted(batch, 0, prompt_weight)[:, skip:].flatten()
    flat = logits.flatten(0, 1).float()
    soft = F.cross_entropy(flat, goal[:, skip:].flatten(0, 1).float().softmax(-1), reduction="none")
    hard = F.cross_entropy(flat, batch.tokens[:, 1 + skip :].flatten(), reduction="none")
    return ((soft + hard) * 0.5 * weight).sum() / weight.sum()


def unrolled(net: EagleNet, target: LlamaNet, batch: Batch, aux: tuple[int, ...], kept: Tensor, steps: int) -> Tensor:
    """Training-time test: at each step half the target's distribution over the draft vocabulary, half its chosen token.

    Tokens outside the draft vocabulary `kept` [Vd] (ascending target ids) cannot be proposed and carry no loss.
    """
    with torch.no_grad():
        goal, states = target(batch.tokens, aux=aux)
        assert states is not None
        goal = goal.float()[..., kept].softmax(-1)
        place = torch.searchsorted(kept, batch.tokens).clamp(max=len(kept) - 1)
        weight = predicted(batch, 1, 0.0) * (kept[place] == batch.tokens)[:, 1:]
    total = torch.zeros((), device=batch.tokens.device)
    for step, logits in enumerate(net.unroll(batch.tokens, states, steps)):
        slots = batch.tokens.shape[1] - 2 - step
        flat = logits[:, :slots].flatten(0, 1).float()
        seen = weight[:, 1 + step :].flatten()
        soft = F.cross_entropy(flat, goal[:, 1 + step : 1 + step + slots].flatten(0, 1), reduction="none")
        hard = F.cross_entropy(flat, place[:, 2 + step :].flatten(), reduction="none")
        total = total + STEP_DECAY**step * ((soft + hard) * 0.5 * seen).sum() / seen.sum().clamp(min=1.0)
    return total / sum(STEP_DECAY**step for step in range(steps))
