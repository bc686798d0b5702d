"""Starting ranks, calling them as one, and noticing when one of them dies, hangs or leaves the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import torch

from engine.core.agreement import Agreement, Comparison
from engine.core.errors import EngineError
from engine.ranks.process import Place, Sent
from engine.scratch import Scratch

# Seconds without a sign of life from any rank: the first steps of a GPU compile their kernels.
PATIENCE: Final = 100.0
# Seconds in which what one rank raised, or its death, is heard of the others.
GRACE: Final = 2.0
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

    device: "cpu" (gloo) or "cuda" (NCCL, a GPU for each rank). patience: seconds of silence that mean a hang. RankLost
    if they do not come up. It ends with `close`, with this process, or when it is forgotten.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        self.size, self.device, self.patience = size, device, patience
        scratch = Scratch("ranks")
        self._logs = [scratch.path / f"rank{rank}.log" for rank in range(size)]
        self._comparison = Comparison(size)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Sent]] = []
        self._finalizer = weakref.finalize(self, _end, self.processes, scratch)
        threads = max(1, torch.get_num_threads() // size)
        for rank in range(size):
            self._start(Place(rank, size, device, threads, scratch.path / "meeting"))
        self._collect()

    @property
    def agreement(self) -> Agreement:
        """How far the ranks were compared; they agree."""
        return self._comparison.agreement

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
        """function(rank, *arguments) on every rank; rank 0's value. All must be known by name to a fresh process.

        What a rank raises is raised here. RanksDiverged where they differ, RankLost where one died or is silent; both
        end all ranks, as does any exception but an EngineError.
        """
        for connection in self._connections:
            try:
                connection.send((function, arguments, time.monotonic()))
            except (BrokenPipeError, ConnectionResetError):
                break
        return self._collect()

    def begin(self) -> None:
        """What the ranks tell from here on is compared afresh: another engine's steps follow."""
        self._comparison = Comparison(self.size)

    @property
    def alive(self) -> bool:
        """False once the ranks were ended, or one of them has."""
        return self._finalizer.alive and all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        """End the ranks."""
        for connection in self._connections:
            try:
                connection.send(None)
            except (BrokenPipeError, ConnectionResetError):
                continue
        for process in self.processes:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                break
        self._finalizer()

    def _start(self, place: Place) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with self._logs[place.rank].open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.ranks.process", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for who called
            )
        theirs.close()
        self.processes.append(process)
        self._connections.append(ours)
        ours.send(place)

    def _collect(self) -> Any:  # noqa: ANN401 - as the call
        """Wait until every rank has answered."""
        answers: dict[int, Sent] = {}
        heard = time.monotonic()
        while len(answers) < self.size:
            waiting = [c for rank, c in enumerate(self._connections) if rank not in answers]
            ready = wait(waiting, max(0.0, heard + self.patience - time.monotonic()))
            if not ready:
                told = {rank: self._comparison.told[rank] for rank in range(self.size) if rank not in answers}
                # Where all wait for each other, they wait for those that have told least.
                silent = tuple(rank for rank, count in told.items() if count == min(told.values()))
                raise self._lost(silent, f"silent for {self.patience:g} s", "were" if len(silent) > 1 else "was")
            heard = time.monotonic()
            for rank in [rank for rank, c in enumerate(self._connections) if c in ready]:
                self._hear(rank, answers)
            crashed = [error for kind, error in answers.values() if kind == "raised"]
            if crashed and not isinstance(crashed[0], EngineError):
                raise self._crash(answers)
        self._comparison.rest()
        self._check()
        kind, value = answers[0]
        if kind == "raised":
            raise value
        return value

    def _hear(self, rank: int, answers: dict[int, Sent]) -> None:
        """Take one message of a rank. RankLost if it is gone, RanksDiverged if it shows that they differ."""
        try:
            kind, value = self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            raise self._lost((rank,), f"exit code {self.processes[rank].wait()}", "died with") from None
        if kind == "told":
            self._comparison.tell(rank, value)
            self._check()
        else:
            answers[rank] = kind, value

    def _check(self) -> None:
        if self._comparison.divergence is not None:
            self._finalizer()
            raise RanksDiverged(self._comparison.agreement)

    def _crash(self, answers: dict[int, Sent]) -> Exception:
        """What a rank raised, unless it only suffered from another one's death or from a difference."""
        end = time.monotonic() + GRACE
        while left := [c for rank, c in enumerate(self._connections) if rank not in answers]:
            ready = wait(left, max(0.0, end - time.monotonic()))
            if not ready:
                break
            for rank in [rank for rank, c in enumerate(self._connections) if c in ready]:
                self._hear(rank, answers)
        rank = min(rank for rank, (kind, _) in answers.items() if kind == "raised")
        error: Exception = answers[rank][1]
        error.add_note(f"raised on rank {rank} of {self.size}")
        self._finalizer()
        return error

    def _lost(self, ranks: tuple[int, ...], what: str, verb: str) -> RankLost:
        """End all ranks; the sentence about those that are lost, and their logs."""
        for rank in ranks:
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # a live one logs where it is meanwhile
        names = " and ".join(f"rank {rank}" for rank in ranks)
        logs = [f"log of rank {rank}:\n{self._tail(rank)}" for rank in ranks]
        self._finalizer()
        return RankLost("\n".join([f"{names} of {self.size} {verb} {what}", *logs]))

    def _tail(self, rank: int) -> str:
        lines = self._logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:]) or "(empty)"


def _end(processes: list[subprocess.Popen[bytes]], scratch: Scratch) -> None:
    # All before the first wait: one that holds a GPU takes a second to end.
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    scratch.close()
