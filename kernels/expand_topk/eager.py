"""expand_topk as a multiplication and a stable sort."""

from torch import Tensor


def expand_topk(scores: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    topk = probs.shape[2]
    grown = (scores[:, :, None] * probs).flatten(1)
    best, chosen = grown.sort(dim=1, descending=True, stable=True)
    return grown, best[:, :topk], chosen[:, :topk]
