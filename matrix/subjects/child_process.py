"""A process that runs code that may do anything; nothing of it outlives this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, Final
from uuid import uuid4

MARK: Final = "SPECMATRIX_STARTED_AS"
OUTPUT_TAIL: Final = 16384  # bytes
READER_SECONDS: Final = 1.0
PASSES: Final = 100


class ChildProcess:
    """A command as the leader of a process group of its own, which `stop` kills as a whole, and on Linux every process
    that it started in another group and that has kept its environment.

    Its standard input is a pipe that only this process holds, for `specmatrix.exit_with_parent`. Its stdout and stderr
    are read all the time, whatever their size, and only their end is kept.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._mark = uuid4().hex
        given = os.environ if environment is None else environment
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**given, MARK: f"{os.environ.get(MARK, '')}{self._mark}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process alone
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._tail = self._process.stdin, b""
        self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def wait(self, seconds: float) -> int | None:
        """Its exit status, -N if signal N killed it; None if it still runs after this time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def cpu_seconds(self) -> float | None:
        """CPU time that the living processes of its group have used; None where /proc does not tell."""
        found: float | None = None
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                # After the name in brackets: state, parent, group, and the times as 12th and 13th.
                words = path.read_bytes().rpartition(b") ")[2].split()
                if int(words[2]) == self._process.pid:
                    found = (found or 0.0) + (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def pause(self) -> None:
        """Suspend every process of its group; `stop` still ends them."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def stop(self) -> None:
        """Kill what still runs of it, and wait for its end."""
        # No process is left; macOS reports that as PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for _ in range(PASSES):  # one may start another before it is killed
            for pid in (others := self._others()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not others:
                break
        self._stdin.close()
        # A process that left the group may still hold the pipe.
        self._reader.join(READER_SECONDS)

    def _others(self) -> list[int]:
        """Living processes with this one's mark in their environment, which an ended one has no more. Those that they
        started with marks of their own have it too."""
        found, name, mark = [], f"{MARK}=".encode(), self._mark.encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if any(mark in one for one in path.read_bytes().split(b"\0") if one.startswith(name)):
                    found.append(int(path.parent.name))
        return found

    def output_end(self, characters: int) -> str:
        """The end of its output, complete after `stop`."""
        return self._tail.decode(errors="replace").strip()[-characters:]

    def _read(self, output: IO[bytes]) -> None:
        with output:
            while chunk := os.read(output.fileno(), 65536):
                self._tail = (self._tail + chunk)[-OUTPUT_TAIL:]
