"""The definition of store_kv."""

from torch import Tensor


def store_kv(rows: Tensor, slots: Tensor, kv: Tensor) -> None:
    """One token after the other."""
    for token, slot in enumerate(slots.tolist()):
        rows[slot] = kv[token]
