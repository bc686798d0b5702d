"""store_kv as one torch call."""

from torch import Tensor


def store_kv(rows: Tensor, slots: Tensor, kv: Tensor) -> None:
    rows.index_copy_(0, slots, kv)
