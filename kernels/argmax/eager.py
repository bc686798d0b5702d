"""best_token as one torch call."""

from torch import Tensor


def best_token(logits: Tensor) -> Tensor:
    return logits.argmax(-1)
