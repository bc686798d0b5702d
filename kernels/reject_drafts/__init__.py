"""Rejection sampling of draft chains that were drawn from known distributions."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.reject_drafts import eager

__all__ = ["reject_drafts"]


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
    for name, tensor in (("q", q), ("coins", coins), ("last", last)):
        wanted = (batch, steps, p.shape[2])[: tensor.dim()] if name != "last" else (batch, steps + 1)
        if tensor.shape != wanted:
            raise preconditions.shape_error("reject_drafts", name, tensor, wanted)
    if p.shape[:2] != (batch, steps + 1):
        raise preconditions.shape_error("reject_drafts", "p", p, (batch, steps + 1, "V"))
    return eager.reject_drafts(p, q, drafts, coins, last, block)
