"""One step of best-first draft tree growth (EAGLE-2, arXiv 2406.16858)."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def expand_topk(scores: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every beam proposes k children; the best k of all children are the next beams.

    scores float32 [B, K]: product of probabilities along each beam; probs float32 [B, K, k]: those of its k children.
    -> grown [B, K * k]: score of child `rank` of `beam` at beam * k + rank, beam score times probability;
    best [B, k]: the k largest scores, descending; chosen int64 [B, k]: their indices in grown (lower first on ties).
    KernelError on other shapes.
    """
    if probs.dim() != 3 or probs.shape[1] == 0:
        raise preconditions.shape_error("expand_topk", "probs", probs, ("B", "K >= 1", "k"))
    preconditions.shapes("expand_topk", scores=(scores, probs.shape[:2]))
    if on_triton(scores):
        return triton_module(__name__).expand_topk(scores, probs)
    topk = probs.shape[2]
    grown = (scores[:, :, None] * probs).flatten(1)
    best, chosen = grown.sort(dim=1, descending=True, stable=True)
    return grown, best[:, :topk], chosen[:, :topk]
