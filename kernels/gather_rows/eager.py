"""gather and scatter as one torch call each."""

from torch import Tensor


def gather(buffer: Tensor, rows: Tensor) -> Tensor:
    return buffer.index_select(0, rows)


def scatter(buffer: Tensor, rows: Tensor, values: Tensor) -> None:
    buffer.index_copy_(0, rows, values)
