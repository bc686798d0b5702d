"""Rejection sampling of draft chains that were drawn from known distributions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.kernels import preconditions
from specmatrix.kernels.sample import choose


def reject_drafts(
    p: Tensor, q: Tensor, drafts: Tensor, coins: Tensor, last: Tensor, block: bool
) -> tuple[Tensor, Tensor]:
    """Verify a chain of S drafts per request. If drafts are distributed as q, the output is distributed as p.

    p float32 [B, S + 1, V]: the target's distribution after the root and each draft; q float32 [B, S, V]: each draft's
    distribution; negative and non-finite values count as 0, and a draft with such a value is rejected. drafts int64 [B,
    S]; coins float64 [B, S] decide acceptance; last float64 [B, S + 1] draw the token after each count. Token rule
    (arXiv 2211.17192): draft i is accepted if coin * q_i(draft) < p_i(draft), and all before it are. block (arXiv
    2403.10444): h_0 = 1 and h_i = min(h_{i-1} * p_i(draft) / q_i(draft), 1); the longest prefix of i drafts is accepted
    whose coin is below R / (R + 1 - h_i), where R is the sum of max(h_i * p_{i+1} - q_{i+1}, 0), or below h_i if i is S
    or h_i is 0 or 1. The token after i accepted drafts comes from max(h_i * p - q, 0), where h_i is 1 for the token
    rule; from p if that is nowhere above 0, or if all drafts are accepted. -> tokens int64 [B, S + 1], those up to
    count valid; count int64 [B], accepted drafts and the token after them. Torch operations without host
    synchronisation, so that CUDA graphs can capture them.
    """
    batch, steps = drafts.shape
    full, chain = (batch, steps, p.shape[2]), (batch, steps)
    preconditions.shapes("reject_drafts", q=(q, full), coins=(coins, chain), last=(last, (batch, steps + 1)))
    if p.shape[:2] != (batch, steps + 1):
        raise preconditions.shape_error("reject_drafts", "p", p, (batch, steps + 1, "V"))
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
    return torch.where(here, pad(drafts, (0, 1)), after), accepted + 1


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
