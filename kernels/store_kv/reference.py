"""The reference of store_kv."""

from torch import Tensor


def store_kv(rows: Tensor, slots: Tensor, kv: Tensor) -> None:
    """One token at a time."""
    for token, slot in enumerate(slots.tolist()):
        rows[slot] = kv[token]
