"""The verifier: sample, then match; or rejection sampling, by the token or the block rule.

Under `match`, the target's next token is drawn at every node with counter-based randomness f(seed, position). A child
is accepted if its token equals that draw, and the draw at the last accepted node is the bonus token. So a child x of
node n is accepted with probability p_n(x), as in SGLang's target-only tree sampling; the output has exactly the
target's distribution, and its tokens are those of plain decoding with the same seed. Greedy is the case in which the
draw is the argmax.

Under `reject` and `block`, a chain's drafts are drawn from a distribution q and accepted with total probability
sum(min(p, q)), where `match` has sum(p * q). The output has the target's distribution, but not plain decoding's tokens.
Greedy batches are matched.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from specmatrix.engine.device.batch import VerifyResult, count, past
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.sampling import COINS, RESIDUAL, SamplingRows, law_of, pick, stream
from specmatrix.engine.spec.drafter import DraftTree
from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.reject_drafts import reject_drafts


def verify(
    logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, ranks: Ranks = ALONE, rule: str = "match"
) -> VerifyResult:
    """Accept a path of each tree.

    logits [B, N, V]; start [B] KV length before the round; rows: None if all rows of the batch are greedy.
    ranks: rank 0's tokens apply on every rank, because near ties may differ between devices (sglang#22458, #31071).
    The token after node n has absolute position start + depth(n) + 1. rule: match, reject or block, the
    last two for chains only.
    """
    if rule != "match" and rows is not None and tree.depth:
        return _by_rejection(logits, tree, start, rows, ranks, rule == "block")
    emit = ranks.agreed(pick(logits, None if rows is None else start[:, None] + tree.depths + 1, rows))
    if not tree.depth:
        return VerifyResult(tree.depths, _ones(*start.shape, start.device), emit)
    if tree.ancestors is None:
        hits = (tree.verified[:, 1:] == emit[:, :-1]).cumprod(1)
        return VerifyResult(tree.depths, 1 + hits.sum(1), emit)
    path, accepted = accept_path(tree.verified, tree.parents, emit, tree.depth, tree.ancestors)
    moved = (path != count(path.shape[1], path.device)).any(1)
    return VerifyResult(path, accepted, emit.gather(1, path), moved)


def _by_rejection(
    logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows, ranks: Ranks, block: bool
) -> VerifyResult:
    """Accept drafts of chains by rejection sampling."""
    drafts, columns = tree.tokens[:, 1:], count(tree.depth + 2, start.device)[1:]
    p = law_of(logits, rows)
    q = torch.zeros_like(p[:, 1:]).scatter_(2, drafts[..., None], 1.0) if tree.q is None else tree.q
    if tree.lengths is not None:  # q of 0 rejects a draft, and leaves all of p to the token in its place
        q = q.masked_fill(past(tree.lengths - 1, tree.depth)[..., None], 0.0)
    coins = stream(COINS, rows.seed, start, columns[:-1])
    tokens, accepted = reject_drafts(p, q, drafts, coins, stream(RESIDUAL, rows.seed, start, columns), block)
    both = ranks.agreed(torch.cat((tokens, accepted[:, None]), 1))
    return VerifyResult(tree.depths, both[:, -1], both[:, :-1])


@cache
def _ones(batch: int, device: torch.device) -> Tensor:
    """Counts of rounds without drafts; cached, because plain decoding needs them at every step."""
    with torch.inference_mode(False):
        return torch.ones(batch, dtype=torch.int64, device=device)
