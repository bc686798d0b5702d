"""Starts ranks, calls them as one, and detects when a rank dies, hangs or diverges."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pickle import dumps, loads
from typing import Any, Final

import torch

from specmatrix.child_process import OUTPUT_TAIL, ChildProcess, RemoteFailure, start
from specmatrix.engine.core.observe.rank_agreement import Agreement, RankComparison
from specmatrix.engine.parallel.worker import STACK_SIGNAL, Rank, RankSpec, Sent, run_rank
from specmatrix.errors import EngineError, RequestError, is_interrupt, text_of
from specmatrix.temp_dir import TempDir

# Seconds without a message from any rank: the first steps on a GPU compile kernels.
PATIENCE: Final = 100.0
# Seconds to wait for the other ranks' failures after one rank raised.
GRACE: Final = 2.0
# Seconds for an interrupted call to end before the ranks are killed.
DRAIN: Final = 10.0
LOG_LINES: Final = 40


class RankLost(Exception):
    """A rank died or hangs, which is not the caller's fault; the text ends with the rank's log."""


class RanksDiverged(Exception):
    """The ranks disagree and cannot continue. agreement: how far they agreed."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(agreement.divergence)
        self.agreement = agreement


class RankGroup:
    """`size` ranks, one process each, on one machine.

    device: "cpu" (gloo) or "cuda" (NCCL, one GPU per rank). patience: seconds of silence that count as a hang, also at
    the start. Raises RankLost if they do not start. It ends with `close`, with this process, or when it is garbage
    collected; ended: why it has ended, None while it is alive.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        self.size, self.device, self.patience = size, device, patience
        self.ended: str | None = None
        scratch = TempDir("ranks")
        self.comparison = RankComparison(size)
        self.processes: list[ChildProcess] = []
        self._connections: list[Connection[Any, Sent]] = []
        self._finalizer = weakref.finalize(self, _end, self.processes, scratch)
        self._inside = threading.RLock()
        self._calling = False
        # The ranks' answers to the running call; whether no message is partially sent or received.
        self._answers: dict[int, Sent] = {}
        self._whole = True
        threads = max(1, torch.get_num_threads() // size)
        try:
            for rank in range(size):
                process, connection = start(run_rank, RankSpec(rank, size, device, threads, scratch.path / "meeting"))
                self.processes.append(process)
                self._connections.append(connection)
            self._collect()
        except BaseException:
            self._end("they did not start")
            raise

    @property
    def agreement(self) -> Agreement:
        """How far the ranks were compared; they agree up to there."""
        return self.comparison.agreement

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
        """Run function(rank, *arguments) on every rank and return rank 0's value. Both must be importable by name in a
        fresh process.

        An EngineError that all ranks raise is raised here. RanksDiverged if they differ, RankLost if one died or is
        silent; both end all ranks, as does any exception but an EngineError, and every later call raises RankLost. An
        exception that does not survive pickling becomes an EngineError or a RemoteError with its text.
        An interrupted call (Ctrl-C, or what another signal's handler raises) gets DRAIN seconds to finish, so that the
        group stays usable; a second interrupt, or a call that takes longer, ends it. Raises EngineError while another
        call runs, and RequestError if an argument cannot be pickled.
        """
        try:
            message = dumps((function, arguments, time.monotonic()))
        except Exception as error:  # raised by the pickling of an argument
            raise RequestError(
                f"an argument cannot be sent to the ranks ({text_of(error)}); allowed: what can be pickled"
            ) from None
        with self.exclusive():
            if self._calling:
                raise EngineError("the ranks are already running a call; make one call at a time")
            if self.ended is not None:
                raise self._gone()
            self._calling = True
            try:
                return self._exchange(message)
            finally:
                self._calling = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Reserve the ranks for several calls of this thread; other threads' calls raise EngineError meanwhile."""
        if not self._inside.acquire(blocking=False):
            raise EngineError("another thread is calling this engine; make one call at a time")
        try:
            yield
        finally:
            self._inside.release()

    def begin(self) -> None:
        """Restart the comparison: another engine's steps follow."""
        self.comparison = RankComparison(self.size)

    @property
    def alive(self) -> bool:
        """False once the ranks were ended, or one of them has ended."""
        return self.ended is None and all(process.wait(0) is None for process in self.processes)

    def close(self) -> None:
        """End the ranks; has no effect the second time. Raises EngineError while another thread calls them."""
        with self.exclusive():
            if self.ended is not None:
                return
            try:
                for connection in self._connections:
                    with suppress(BrokenPipeError, ConnectionResetError):  # it has already ended
                        connection.send_bytes(b"")
                for process in self.processes:
                    process.wait(GRACE)
            finally:
                self._end("they were closed")

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
                break  # _collect detects its end
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
        # Exception types are compared, because texts may contain values that differ, such as addresses or free memory.
        raised = {rank: (value.kind, value.text) for rank, (kind, value) in self._answers.items() if kind == "raised"}
        if raised and len({raised.get(rank, ("",))[0] for rank in range(self.size)}) > 1:
            texts = {rank: text for rank, (_, text) in raised.items()}
            self._differ(", ".join(f"rank {rank} raised {texts.get(rank, 'nothing')}" for rank in range(self.size)))
        self.comparison.check_complete()
        self._check()
        return True

    def _hear(self, ready: Container[object]) -> None:
        """Receive one message from each ready rank. RankLost if a rank has ended, RanksDiverged if they differ."""
        for rank, connection in enumerate(self._connections):
            if connection not in ready:
                continue
            self._whole = False
            try:
                kind, value = connection.recv()
            except (EOFError, OSError) as error:  # during a message, or between two
                if is_interrupt(error):  # raised by a signal handler, perhaps as TimeoutError, which is an OSError
                    raise
                raise self._lost((rank,), f"exit code {self.processes[rank].wait(GRACE)}", "died with") from None
            if kind == "digest":
                self.comparison.add(rank, value)
            else:
                self._answers[rank] = kind, value
            self._whole = True
            self._check()

    def _drain(self, error: BaseException) -> None:
        """Receive the answers to a call that `error` interrupted, so that the next call does not; or end the ranks."""
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
        """The exception of a rank that failed first, not of one affected by another's death or divergence."""
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
        """The error for ranks in `missing` that have not answered in time."""
        for rank, (kind, failure) in self._answers.items():
            if kind == "raised":
                waited = " and ".join(f"rank {silent}" for silent in missing)
                self._differ(f"rank {rank} raised {failure.text}, {waited} raised nothing in {self.patience:g} s")
        received = {rank: self.comparison.received[rank] for rank in missing}
        # If all ranks wait for each other, they wait for those with the fewest records.
        silent = tuple(rank for rank, count in received.items() if count == min(received.values()))
        return self._lost(silent, f"silent for {self.patience:g} s", "were" if len(silent) > 1 else "was")

    def _lost(self, ranks: tuple[int, ...], what: str, verb: str) -> RankLost:
        """End all ranks; the error describes the lost ranks and contains their logs."""
        if self.ended is not None:  # closed during a call, by a signal handler
            return self._gone()
        for rank in ranks:
            self.processes[rank].send_signal(STACK_SIGNAL)
        time.sleep(0.2)  # a live rank logs its stack meanwhile
        said = " and ".join(f"rank {rank}" for rank in ranks) + f" of {self.size} {verb} {what}"
        self._end(said)
        for rank in ranks:
            log = self.processes[rank].output_end(OUTPUT_TAIL).splitlines()[-LOG_LINES:]
            said = "\n".join([said, f"log of rank {rank}:", *(log or ["(empty)"])])
        return RankLost(said)

    def _gone(self) -> RankLost:
        return RankLost(f"the {self.size} ranks have ended: {self.ended}")

    def _end(self, cause: str) -> None:
        """End the ranks; the first cause is kept."""
        self.ended = self.ended or cause
        self._finalizer()


def _limit_sending(connection: Connection[Any, Sent], seconds: float) -> None:
    """From now on a send raises BlockingIOError if the other side reads nothing for this long."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _end(processes: list[ChildProcess], scratch: TempDir) -> None:
    # Kill all before waiting: a process with a GPU takes a second to end.
    for process in processes:
        process.kill()
    for process in processes:
        process.stop()
    scratch.close()


# Idle groups without an engine, by size and device. They end with this process.
_IDLE_GROUP: Final[dict[tuple[int, str], RankGroup]] = {}


class GroupLease:
    """`size` ranks on `device` for one engine, from the pool if available; `close` returns them to the pool.

    patience: as for RankGroup. Raises RankLost if fresh ranks do not start.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        group = _IDLE_GROUP.pop((size, device), None)
        if group is None or not group.alive:
            group = RankGroup(size, device, patience)
        group.patience = patience
        group.begin()
        self._group: RankGroup | None = group

    @property
    def group(self) -> RankGroup:
        """The ranks. Raises EngineError after `close`, because they may serve another engine."""
        if self._group is None:
            raise EngineError("this engine is closed; start another one")
        return self._group

    def close(self) -> None:
        """Return the ranks to the pool, unless they have ended or the pool already has such a group.

        A second call has no effect; raises EngineError while another thread calls the ranks.
        """
        group = self._group
        if group is None:
            return
        with group.exclusive():
            if self._group is None:  # another thread closed it first
                return
            spare = group.alive and (group.size, group.device) not in _IDLE_GROUP
            if spare:
                group.call(_let_go)
            self._group = None
            if spare:
                _IDLE_GROUP[group.size, group.device] = group
            else:
                group.close()


def end_idle_group() -> None:
    """End all idle groups."""
    while _IDLE_GROUP:
        _IDLE_GROUP.popitem()[1].close()


def _let_go(rank: Rank) -> None:
    rank.held = None
