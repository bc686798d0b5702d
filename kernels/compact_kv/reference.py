"""The reference of compact_kv."""

from torch import Tensor


def compact_kv(data: Tensor, source: Tensor, target: Tensor) -> None:
    """Read everything, then write everything: a target may be another row's source."""
    read = [data[:, slot].clone() for slot in source.tolist()]
    for slot, value in zip(target.tolist(), read, strict=True):
        data[:, slot] = value
