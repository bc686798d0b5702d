"""compact_kv as a gather and a scatter."""

from torch import Tensor


def compact_kv(data: Tensor, source: Tensor, target: Tensor) -> None:
    data.index_copy_(1, target, data.index_select(1, source))
