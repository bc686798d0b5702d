"""What the process of one rank runs.

It joins the other ranks, then runs the calls it receives one after another: a function of this rank and its arguments.
Its output is its log. STACK_SIGNAL makes it log its stack.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import dumps, loads
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import distributed

from specmatrix.child_process import RemoteFailure, attempt
from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.device.collectives import Ranks, peer_memory
from specmatrix.kernels.rank_sum import PeerMemory

# Messages of a rank: a record of its steps, the pickled value of a call (from rank 0 only; a RemoteFailure if it does
# not pickle), or the RemoteFailure of a call that raised.
Sent: TypeAlias = tuple[Literal["digest", "done", "raised"], Any]
# A rank has no terminal whose size could change. LLVM, which compiles Triton's kernels, takes SIGUSR1 for itself.
STACK_SIGNAL: Final = signal.SIGWINCH
BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Identifies a rank process. meeting: a path that all ranks can write, used as their rendezvous."""

    rank: int
    size: int
    device: str
    threads: int
    meeting: Path


@dataclass(slots=True)
class Rank:
    """A rank as seen by calls. peers: as of `Ranks`. held: state kept between calls, usually an engine. now: the
    caller's clock."""

    place: RankSpec
    publish: Callable[[StepDigest], None]
    peers: PeerMemory | None = None
    held: Any = None
    now: float = 0.0

    def ranks(self, ordered: bool) -> Ranks:
        """The collectives of an engine's ranks, as seen by this rank."""
        return Ranks(self.place.rank, self.place.size, ordered, self.peers)


def run_rank(place: RankSpec, connection: Connection[Sent, Any]) -> None:
    """Join the other ranks and serve calls, until the parent sends an empty one."""
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    serve(_join(place, connection), connection)
    distributed.destroy_process_group()
    # Skips the interpreter's normal shutdown, which takes a second with torch.
    os._exit(0)


def serve(rank: Rank, connection: Connection[Sent, Any]) -> None:
    """Report that this rank is ready, then answer calls until an empty one arrives."""
    connection.send(("done", dumps(None)))
    while call := connection.recv_bytes():
        connection.send(_answer(rank, call))


def _answer(rank: Rank, call: bytes) -> Sent:
    """Run a pickled call: function, arguments, and the caller's clock."""
    kind, value = attempt(_run, rank, call)
    if kind == "raised":
        return kind, value
    try:
        return "done", dumps(None if rank.place.rank else value)
    except Exception as error:  # the ranks agree nevertheless
        return "done", RemoteFailure.of(error)


def _run(rank: Rank, call: bytes) -> object:
    function, arguments, rank.now = loads(call)
    return function(rank, *arguments)


def _join(place: RankSpec, connection: Connection[Sent, Any]) -> Rank:
    torch.set_num_threads(place.threads)
    if place.device == "cuda":
        torch.cuda.set_device(place.rank)
        # Nothing here uses NVLink multicast, which torch would set up.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    else:
        # All ranks are on one machine, and the host name may resolve to another address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        BACKENDS[place.device], init_method=place.meeting.as_uri(), rank=place.rank, world_size=place.size
    )
    peers = peer_memory(place.rank, place.size) if place.device == "cuda" else None
    return Rank(place, lambda record: connection.send(("digest", record)), peers)
