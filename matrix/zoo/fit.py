"""The optimisation loop of every recipe, limited by steps and wall-clock time."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specmatrix.matrix.zoo.corpus import Batch
from specmatrix.matrix.zoo.recipes import Fit


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a fit: optimiser steps, padded tokens, seconds, mean loss of the last progress interval."""

    steps: int
    tokens: int
    seconds: float
    loss: float


def rate_at(progress: float, step: int, fit: Fit) -> float:
    """Learning rate: linear warm-up, constant, then linear decay to zero over the last 60 % of the budget."""
    return fit.peak_rate * min(1.0, (step + 1) / fit.warmup) * min(1.0, (1.0 - progress) / 0.6)


def optimise(
    module: nn.Module,
    fit: Fit,
    seconds: float,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], Tensor],
    say: Callable[[str], None],
) -> Trained:
    """AdamW for `fit.steps` steps or `seconds` of wall-clock time; ArithmeticError if the loss is not finite."""
    device = next(module.parameters()).device
    cuda = device.type == "cuda"
    matrices = [p for p in module.parameters() if p.dim() >= 2]
    scales = [p for p in module.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": fit.weight_decay}, {"params": scales, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=fit.peak_rate, betas=(0.9, 0.97), fused=cuda)
    started, tokens, step = time.monotonic(), 0, 0
    window: list[Tensor] = []
    next_line, progress, mean = 0.05, 0.0, math.nan
    while progress < 1.0:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(progress, step, fit)
        batch = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = loss_of(batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        window.append(loss.detach())
        tokens += batch.tokens.numel()
        step += 1
        if cuda and step % 16 == 0:
            # Otherwise the host runs far ahead, and the time limit covers kernel launches, not their execution.
            torch.cuda.synchronize()
        spent = time.monotonic() - started
        progress = max(step / fit.steps, spent / seconds)
        if progress >= next_line:
            mean = torch.stack(window).float().mean().item()
            if not math.isfinite(mean):
                raise ArithmeticError(f"the loss is {mean} after {step} steps; lower the learning rate")
            say(f"  {spent:6.1f} s  step {step:6d}  loss {mean:.4f}  {tokens / spent / 1e6:.2f} M tokens/s")
            window.clear()
            next_line = progress + 0.1
    if window:
        mean = torch.stack(window).float().mean().item()
    return Trained(step, tokens, time.monotonic() - started, mean)
