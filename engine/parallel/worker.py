"""The life of one rank: `python -P -m specmatrix.engine.parallel.worker FD`, FD being its end of a pipe.

It joins the others, then does what it is sent, one call after another: a function of this rank and what comes with it.
What it prints is its log. SIGUSR1 makes it log where it is.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import dumps, loads
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import distributed

from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.exit_with_parent import exit_with_parent
from specmatrix.engine.parallel.failure import RemoteFailure

# What a rank sends: a record of its steps, the pickled value of a call (rank 0's only, a Failure where it does not
# pickle), or the Failure that the call was.
Sent: TypeAlias = tuple[Literal["told", "done", "raised"], Any]
BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank a process is. meeting: a path that all ranks can write, where they find each other."""

    rank: int
    size: int
    device: str
    threads: int
    meeting: Path


@dataclass(slots=True)
class Rank:
    """A rank as the calls see it. held: what they keep between them, an engine mostly. now: the caller's clock."""

    place: Place
    tell: Callable[[StepDigest], None]
    held: Any = None
    now: float = 0.0

    def ranks(self, ordered: bool) -> Ranks:
        """The ranks of an engine, as this one sees them."""
        return Ranks(self.place.rank, self.place.size, ordered)


def main(descriptor: int) -> None:
    """Join the others and serve calls, until the starter ends or sends an empty one."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    exit_with_parent()
    connection: Connection[Sent, Any] = Connection(descriptor)
    serve(_join(connection.recv(), connection), connection)
    distributed.destroy_process_group()
    # What an interpreter tidies up at its end takes torch a second.
    os._exit(0)


def serve(rank: Rank, connection: Connection[Sent, Any]) -> None:
    """Say that this rank is there, then answer calls until an empty one comes."""
    connection.send(("done", dumps(None)))
    while call := connection.recv_bytes():
        connection.send(_answer(rank, call))


def _answer(rank: Rank, call: bytes) -> Sent:
    """Run a pickled call: function, arguments, and the caller's clock."""
    try:
        function, arguments, rank.now = loads(call)
        value = function(rank, *arguments)
    except Exception as error:  # The caller decides what it means; this rank goes on if it is called again.
        traceback.print_exc()
        return "raised", RemoteFailure.of(error)
    try:
        return "done", dumps(None if rank.place.rank else value)
    except Exception as error:  # The ranks agree all the same.
        return "done", RemoteFailure.of(error)


def _join(place: Place, connection: Connection[Sent, Any]) -> Rank:
    torch.set_num_threads(place.threads)
    if place.device == "cuda":
        torch.cuda.set_device(place.rank)
    else:
        # Ranks of one machine; the name of the host may lead elsewhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        BACKENDS[place.device], init_method=place.meeting.as_uri(), rank=place.rank, world_size=place.size
    )
    return Rank(place, lambda record: connection.send(("told", record)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
