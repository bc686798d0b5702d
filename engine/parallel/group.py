"""Starting ranks, calling them as one, and noticing when one of them dies, hangs or leaves the others."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import dumps, loads
from typing import Any, Final

import torch

from specmatrix.engine.core.observe.rank_agreement import Agreement, RankComparison
from specmatrix.engine.parallel.failure import RemoteFailure
from specmatrix.engine.parallel.worker import Place, Sent
from specmatrix.engine.temp_dir import TempDir
from specmatrix.errors import EngineError

# Seconds without a sign of life from any rank: the first steps of a GPU compile their kernels.
PATIENCE: Final = 100.0
# Seconds in which what one rank raised, or its death, is heard of the others.
GRACE: Final = 2.0
# Seconds that an interrupted call has to end before the ranks are ended.
DRAIN: Final = 10.0
LOG_LINES: Final = 40


class RankLost(Exception):
    """A rank died or hangs, which says nothing about what it was asked; the text ends with its log."""


class RanksDiverged(Exception):
    """The ranks do not agree, so they cannot go on. agreement: how far they came."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(agreement.divergence)
        self.agreement = agreement


class RankGroup:
    """`size` ranks, a process each, on one machine.

    device: "cpu" (gloo) or "cuda" (NCCL, a GPU for each rank). patience: seconds of silence that mean a hang, at the
    start too. RankLost if they do not come up. It ends with `close`, with this process, or when it is forgotten;
    ended: why it has, None while it lives.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        self.size, self.device, self.patience = size, device, patience
        self.ended: str | None = None
        scratch = TempDir("ranks")
        self._logs = [scratch.path / f"rank{rank}.log" for rank in range(size)]
        self.comparison = RankComparison(size)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Sent]] = []
        self._finalizer = weakref.finalize(self, _end, self.processes, scratch)
        self._inside = threading.RLock()
        self._calling = False
        # What the ranks answered to the call that runs; whether no message is half sent or half read.
        self._answers: dict[int, Sent] = {}
        self._whole = True
        threads = max(1, torch.get_num_threads() // size)
        try:
            for rank in range(size):
                self._start(Place(rank, size, device, threads, scratch.path / "meeting"))
            self._collect()
        except BaseException:
            self._end("they did not start")
            raise

    @property
    def agreement(self) -> Agreement:
        """How far the ranks were compared; they agree."""
        return self.comparison.agreement

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
        """function(rank, *arguments) on every rank; rank 0's value. All must be known by name to a fresh process.

        An EngineError that all ranks raise is raised here. RanksDiverged where they differ, RankLost where one died or
        is silent; both end all ranks, as does any exception but an EngineError, and every later call is a RankLost. An
        exception that does not survive pickling is an EngineError or a RankFailed with its text.
        An interrupted call (KeyboardInterrupt) is awaited for DRAIN seconds, so that the group can go on; a second
        interrupt, or a call that takes longer, ends it. EngineError while another call runs.
        """
        message = dumps((function, arguments, time.monotonic()))
        with self.exclusive():
            if self._calling:
                raise EngineError("the ranks are within a call already; make one call at a time")
            if self.ended is not None:
                raise self._gone()
            self._calling = True
            try:
                return self._exchange(message)
            finally:
                self._calling = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Several calls that no other thread may come between: its calls are an EngineError meanwhile."""
        if not self._inside.acquire(blocking=False):
            raise EngineError("another thread is within a call of this engine; make one call at a time")
        try:
            yield
        finally:
            self._inside.release()

    def begin(self) -> None:
        """What the ranks tell from here on is compared afresh: another engine's steps follow."""
        self.comparison = RankComparison(self.size)

    @property
    def alive(self) -> bool:
        """False once the ranks were ended, or one of them has."""
        return self.ended is None and all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        """End the ranks, once; EngineError while another thread calls them."""
        with self.exclusive():
            if self.ended is not None:
                return
            try:
                for connection in self._connections:
                    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already
                        connection.send_bytes(b"")
                with suppress(subprocess.TimeoutExpired):
                    for process in self.processes:
                        process.wait(GRACE)
            finally:
                self._end("they were closed")

    def _start(self, place: Place) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with self._logs[place.rank].open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "specmatrix.engine.parallel.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the caller
            )
        theirs.close()
        self.processes.append(process)
        self._connections.append(ours)
        ours.send(place)

    def _exchange(self, message: bytes) -> Any:  # noqa: ANN401 - as the call
        self._answers = {}
        try:
            self._send(message)
            self._collect()
        except BaseException as error:
            if self.ended is None:
                self._drain(error)
            raise
        _, value = self._answers[0]
        if isinstance(value, RemoteFailure):
            raise value.exception()
        return loads(value)

    def _send(self, message: bytes) -> None:
        self._whole = False
        for rank, connection in enumerate(self._connections):
            _limit_sending(connection, self.patience)
            try:
                connection.send_bytes(message)
            except (BrokenPipeError, ConnectionResetError):
                break  # _collect hears of its end
            except BlockingIOError:
                raise self._silent([rank]) from None
        self._whole = True

    def _collect(self, end: float = math.inf) -> bool:
        """Wait until every rank has answered, and compare the answers. False if one has not by `end`."""
        heard = time.monotonic()
        while missing := [rank for rank in range(self.size) if rank not in self._answers]:
            now = time.monotonic()
            if now >= end:
                return False
            ready = wait([self._connections[rank] for rank in missing], max(0.0, min(heard + self.patience, end) - now))
            if ready:
                heard = time.monotonic()
                self._hear(ready)
            elif time.monotonic() >= heard + self.patience:
                raise self._silent(missing)
            if any(kind == "raised" and not value.refusal for kind, value in self._answers.values()):
                raise self._crash()
        # Kinds are compared, as texts may name what differs, such as addresses and free memory.
        raised = {rank: (value.kind, value.text) for rank, (kind, value) in self._answers.items() if kind == "raised"}
        if raised and len({raised.get(rank, ("",))[0] for rank in range(self.size)}) > 1:
            texts = {rank: text for rank, (_, text) in raised.items()}
            self._differ(", ".join(f"rank {rank} raised {texts.get(rank, 'nothing')}" for rank in range(self.size)))
        self.comparison.rest()
        self._check()
        return True

    def _hear(self, ready: Container[object]) -> None:
        """Take one message of each rank that has one. RankLost if it is gone, RanksDiverged if they differ."""
        for rank, connection in enumerate(self._connections):
            if connection not in ready:
                continue
            self._whole = False
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):  # within a message, or between two
                raise self._lost((rank,), f"exit code {self.processes[rank].wait()}", "died with") from None
            if kind == "told":
                self.comparison.tell(rank, value)
            else:
                self._answers[rank] = kind, value
            self._whole = True
            self._check()

    def _drain(self, error: BaseException) -> None:
        """Await the answers to a call that `error` interrupted, lest the next call takes them; or end the ranks."""
        drained = False
        try:
            drained = self._whole and self._collect(time.monotonic() + DRAIN)
        except Exception as ended:
            error.add_note(RemoteFailure.of(ended).text)
        finally:
            if not drained:
                self._end(f"a call was interrupted by {type(error).__name__}")

    def _check(self) -> None:
        if self.comparison.divergence is not None:
            self._end(self.comparison.divergence)
            raise RanksDiverged(self.comparison.agreement)

    def _differ(self, how: str) -> None:
        self.comparison.divergence = self.comparison.divergence or f"the ranks differ: {how}"
        self._check()

    def _crash(self) -> Exception:
        """What a rank raised, unless it only suffered from another one's death or from a difference."""
        end = time.monotonic() + GRACE
        while missing := [c for rank, c in enumerate(self._connections) if rank not in self._answers]:
            ready = wait(missing, max(0.0, end - time.monotonic()))
            if not ready:
                break
            self._hear(ready)
        failures = {rank: value for rank, (kind, value) in self._answers.items() if kind == "raised"}
        rank = min(rank for rank, failure in failures.items() if not failure.refusal)
        where = f"raised on rank {rank} of {self.size}"
        error: Exception = failures[rank].exception()
        error.add_note(f"{where}\n{failures[rank].trace}")
        self._end(f"{failures[rank].text}, {where}")
        return error

    def _silent(self, missing: Sequence[int]) -> Exception:
        """The ranks of `missing` have not answered in time."""
        for rank, (kind, failure) in self._answers.items():
            if kind == "raised":
                waited = " and ".join(f"rank {silent}" for silent in missing)
                self._differ(f"rank {rank} raised {failure.text}, {waited} raised nothing in {self.patience:g} s")
        told = {rank: self.comparison.told[rank] for rank in missing}
        # Where all wait for each other, they wait for those that have told least.
        silent = tuple(rank for rank, count in told.items() if count == min(told.values()))
        return self._lost(silent, f"silent for {self.patience:g} s", "were" if len(silent) > 1 else "was")

    def _lost(self, ranks: tuple[int, ...], what: str, verb: str) -> RankLost:
        """End all ranks; the sentence about those that are lost, and their logs."""
        if self.ended is not None:  # closed within a call, by a signal's handler
            return self._gone()
        for rank in ranks:
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # a live one logs where it is meanwhile
        said = " and ".join(f"rank {rank}" for rank in ranks) + f" of {self.size} {verb} {what}"
        logs = [f"log of rank {rank}:\n{self._tail(rank)}" for rank in ranks]
        self._end(said)
        return RankLost("\n".join([said, *logs]))

    def _gone(self) -> RankLost:
        return RankLost(f"the {self.size} ranks have ended: {self.ended}")

    def _tail(self, rank: int) -> str:
        lines = self._logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:]) or "(empty)"

    def _end(self, cause: str) -> None:
        """End the ranks; the first cause stays."""
        self.ended = self.ended or cause
        self._finalizer()


def _limit_sending(connection: Connection[Any, Sent], seconds: float) -> None:
    """From now on a send is a BlockingIOError once the other side has read nothing for so long."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _end(processes: list[subprocess.Popen[bytes]], scratch: TempDir) -> None:
    # All before the first wait: one that holds a GPU takes a second to end.
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    scratch.close()
