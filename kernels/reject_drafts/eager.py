"""reject_drafts, vectorised over requests."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels.sample.eager import choose


def reject_drafts(
    p: Tensor, q: Tensor, drafts: Tensor, coins: Tensor, last: Tensor, block: bool
) -> tuple[Tensor, Tensor]:
    steps = drafts.shape[1]
    q = torch.where((q >= 0) & q.isfinite(), q, 0.0)
    wanted = p[:, :-1].gather(2, drafts[..., None])[..., 0].double()
    drawn = q.gather(2, drafts[..., None])[..., 0].double()
    possible = (drawn > 0) & (drawn <= 1)
    if block:
        held = _held(torch.where(possible, wanted / drawn, 0.0))
        left = _residual(held[:, :-1, None] * p[:, :-1], q)
        accepted = ((coins < _chances(held, left)) * (1 + torch.arange(steps, device=p.device))).amax(1)
    else:
        left = _residual(p[:, :-1], q)
        accepted = (possible & (coins * drawn < wanted)).cumprod(1).sum(1)
    rest = torch.where((left.sum(2, keepdim=True) > 0), left, p[:, :-1])
    after = choose(torch.cat((rest, p[:, -1:]), 1), last)
    here = torch.arange(steps + 1, device=p.device) < accepted[:, None]
    return torch.where(here, torch.nn.functional.pad(drafts, (0, 1)), after), accepted + 1


def _residual(p: Tensor, q: Tensor) -> Tensor:
    # One rounding; exp(log(p) + log1p(-q / p)), which Gumbel noise needs, is off by a third for a q next to p.
    return (p.float() - q).clamp(min=0.0)


def _held(ratio: Tensor) -> Tensor:
    """h_0 to h_S [B, S + 1] of p / q at the drafts [B, S]."""
    held = [torch.ones_like(ratio[:, 0])]
    for column in ratio.unbind(1):
        held.append((held[-1] * column).clamp(max=1.0))
    return torch.stack(held, 1)


def _chances(held: Tensor, left: Tensor) -> Tensor:
    """Upper bound of each draft's accepting coin [B, S]. held: h [B, S + 1]; left: residuals [B, S, V]."""
    more, h = left[:, 1:].double().sum(2), held[:, 1:-1]
    inner = torch.where((h > 0) & (h < 1), more / (more + 1 - h), h)
    return torch.cat((inner, held[:, -1:]), 1)
