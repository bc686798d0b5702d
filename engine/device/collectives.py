"""Collectives of a tensor-parallel engine, from one rank's view. Rank 0 makes all decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, distributed

from specmatrix.errors import EngineError

T = TypeVar("T")


class Ranks:
    """`size` processes that run one engine; this is process `rank`.

    Every rank calls the same methods in the same order with tensors of equal shapes. They use the default group of
    torch.distributed, and no communication with a single rank. ordered: sums are taken in rank order for any shape, so
    that a row's bits do not depend on the other rows.
    """

    def __init__(self, rank: int = 0, size: int = 1, ordered: bool = True) -> None:
        self.rank, self.size, self.ordered = rank, size, ordered

    def parts(self, own: Tensor) -> list[Tensor]:
        """Every rank's tensor, in rank order; all have one shape."""
        found = list(own.new_empty(self.size, *own.shape).unbind())
        distributed.all_gather(found, own.contiguous())
        return found

    def total(self, part: Tensor) -> Tensor:
        """The sum over the ranks, bitwise equal on all of them; `part` may be overwritten."""
        if self.size == 1:
            return part
        if not self.ordered:
            part = part.contiguous()
            distributed.all_reduce(part)
            return part
        total, *others = self.parts(part)
        for other in others:
            total += other
        return total

    def joined(self, part: Tensor, dim: int = -1) -> Tensor:
        """The ranks' tensors concatenated."""
        return part if self.size == 1 else torch.cat(self.parts(part), dim)

    def agreed(self, own: Tensor) -> Tensor:
        """Rank 0's tensor of integers or bool, on every rank."""
        if self.size == 1:
            return own
        sent = own.to(torch.int64, memory_format=torch.contiguous_format, copy=True)
        distributed.broadcast(sent, 0)
        return sent.to(own.dtype)

    def shared(self, make: Callable[[], T]) -> T:
        """What rank 0's `make` returns, pickled for the others, or the EngineError that it raises."""
        if self.size == 1:
            return make()
        own: T | EngineError | None = None
        if self.rank == 0:
            try:
                own = make()
            except EngineError as error:
                own = error
        sent = [own]
        distributed.broadcast_object_list(sent, 0)
        found: Any = own if self.rank == 0 else sent[0]
        if isinstance(found, EngineError):
            raise found
        return cast("T", found)


ALONE: Final = Ranks()
