"""Collectives of a tensor-parallel engine, from one rank's view. Rank 0 makes all decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, distributed

from specmatrix.errors import EngineError
from specmatrix.kernels.rank_sum import BYTES, MAX_RANKS, PeerMemory, rank_sum

T = TypeVar("T")


class Ranks:
    """`size` processes that run one engine; this is process `rank`.

    Every rank calls the same methods in the same order with tensors of equal shapes. They use the default group of
    torch.distributed, and no communication with a single rank. ordered: sums are taken in rank order for any shape, so
    that a row's bits do not depend on the other rows. peers: for small sums on GPUs, see `peer_memory`.
    """

    def __init__(self, rank: int = 0, size: int = 1, ordered: bool = True, peers: PeerMemory | None = None) -> None:
        self.rank, self.size, self.ordered, self.peers = rank, size, ordered, peers

    def parts(self, own: Tensor) -> list[Tensor]:
        """Every rank's tensor, in rank order; all have one shape."""
        found = list(own.new_empty(self.size, *own.shape).unbind())
        distributed.all_gather(found, own.contiguous())
        return found

    def total(self, part: Tensor, onto: Tensor | None = None) -> Tensor:
        """The sum over the ranks, bitwise equal on all of them, added to `onto` if given; `part` may be overwritten."""
        if self.size > 1:
            part = part.contiguous()
            if self.peers is not None and self.peers.fits(part):
                return rank_sum(part, self.peers, part if onto is None else onto, add=onto is not None)
            if self.ordered:
                part, *others = self.parts(part)
                for other in others:
                    part += other
            else:
                distributed.all_reduce(part)
        return part if onto is None else onto.add_(part)

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


def peer_memory(rank: int, size: int) -> PeerMemory | None:
    """Memory that the ranks of the default group, each with one GPU of this machine, map into each other's address
    space; None if a GPU cannot access another's memory. All ranks call it."""
    pairs = ((one, other) for one in range(size) for other in range(size) if one != other)
    if size > MAX_RANKS or not all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs):
        return None
    from torch.distributed import _symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(BYTES, dtype=torch.uint8, device=torch.device("cuda", rank))
    handle = symmetric_memory.rendezvous(own, distributed.group.WORLD)
    own.zero_()
    buffers = [own if other == rank else handle.get_buffer(other, (BYTES,), torch.uint8) for other in range(size)]
    found = PeerMemory(rank, buffers)
    distributed.barrier()
    return found


ALONE: Final = Ranks()
