"""Runs untrusted code in a process tree that dies with its parent.

Results of calls in another process; any exception can be sent, even one that cannot be pickled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import dumps, loads
from socket import socketpair
from threading import Thread, current_thread
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from specmatrix import HOME
from specmatrix.errors import EngineError, described

PROGRAM: Final = "specmatrix.child"
# Runs a module of this package in another interpreter, which keeps its own versions of all other packages.
FOREIGN: Final = (
    "import runpy, sys; place, module = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, place); "
    "import specmatrix; sys.path.remove(place); runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
MARK: Final = "SPECMATRIX_STARTED_AS"
# The user's PYTHONPATH, in processes that have this one's import path as theirs.
USERS_PATH: Final = "SPECMATRIX_USERS_PYTHONPATH"
OUTPUT_TAIL: Final = 16384  # bytes
# Exit statuses of a process that crashed by itself; the host or the user sends other signals.
CRASHES: Final = (-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSEGV)
READER_SECONDS: Final = 1.0
PASSES: Final = 100


class ChildProcess:
    """A command that leads its own process group.

    `stop` kills the group and, on Linux, descendants in other groups that kept its environment. Its stdin is a pipe
    held only by this process, for `specmatrix.exit_with_parent`. Its stdout and stderr are read continuously and only
    their end is kept; with `shown` they go to this process's stderr.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        shown: bool = False,
    ) -> None:
        self._mark = uuid4().hex
        given = os.environ if environment is None else environment
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**given, MARK: f"{os.environ.get(MARK, '')}{self._mark}"},
            stdin=subprocess.PIPE,
            stdout=2 if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,  # so that Ctrl-C in the terminal reaches only this process
        )
        assert self._process.stdin is not None
        self.pid, self.stdin, self._tail = self._process.pid, self._process.stdin, b""
        self._reader: Thread | None = None
        if self._process.stdout is not None:
            self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()

    def wait(self, seconds: float) -> int | None:
        """Wait for its exit status, -N if signal N killed it; None on timeout."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def cpu_seconds(self) -> float | None:
        """CPU time used by the living processes of its group; None if there are none in /proc."""
        found: float | None = None
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                # After the name in brackets: state, parent, group, ...; user and system time are 12th and 13th.
                words = path.read_bytes().rpartition(b") ")[2].split()
                if int(words[2]) == self.pid:
                    found = (found or 0.0) + (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def send_signal(self, number: int) -> None:
        """Send a signal to the process itself, if it still runs."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Suspend every process of its group; `stop` still ends them."""
        os.killpg(self.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill every process of its group without waiting."""
        # Raised if no process is left; macOS raises PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all of its processes that still run, and wait for its end."""
        self.kill()
        self._process.wait()
        alone = False
        for _ in range(PASSES):  # a process may start another before it is killed
            for pid in (others := self._others()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if alone and not others:
                break
            alone = not others  # a process that is being started shows no environment yet, so look once more
        self.stdin.close()
        # A process that left the group may still hold the pipe.
        if self._reader is not None and self._reader is not current_thread():  # it may be, in a garbage collection
            self._reader.join(READER_SECONDS)

    def _others(self) -> list[int]:
        """Pids of living processes whose environment contains this command's mark.

        A nested ChildProcess appends its mark to it, so its processes are included.
        """
        found, name, mark = [], f"{MARK}=".encode(), self._mark.encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if any(mark in one for one in path.read_bytes().split(b"\0") if one.startswith(name)):
                    found.append(int(path.parent.name))
        return found

    def output_end(self, characters: int) -> str:
        """The last characters of its output; complete after `stop`."""
        return self._tail.decode(errors="replace").strip()[-characters:]

    def _read(self, output: IO[bytes]) -> None:
        with output:
            while chunk := os.read(output.fileno(), 65536):
                self._tail = (self._tail + chunk)[-OUTPUT_TAIL:]


def users_environment() -> dict[str, str]:
    """The environment for a command of the user's, whose Python may be another one: without this process's import
    path."""
    found = dict(os.environ)
    if (path := found.pop(USERS_PATH, None)) is not None:
        found["PYTHONPATH"] = path
    if not found.get("PYTHONPATH"):
        found.pop("PYTHONPATH", None)
    return found


def start(
    function: Callable[..., object],
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    imports: Sequence[str] | None = None,
    python: str | None = None,
    shown: bool = False,
) -> tuple[ChildProcess, Connection[Any, Any]]:
    """Start a process that runs function(*arguments, connection). Returns it and this side's end of the connection.

    function: imported by name in the child. imports: the child's import path, by default this process's. python:
    another interpreter, which uses its own packages and this one. environment: changes to this process's environment.
    shown: as for ChildProcess.
    """
    given = {**os.environ, **(environment or {})}
    if python:
        given.pop("PYTHONPATH", None)
        place = HOME if (HOME / "specmatrix").is_dir() else HOME.parent
        words = [python, "-uP", "-c", FOREIGN, str(place), PROGRAM]
    else:
        given.setdefault(USERS_PATH, os.environ.get("PYTHONPATH", ""))
        given["PYTHONPATH"] = os.pathsep.join(place or str(Path.cwd()) for place in imports or sys.path)
        words = [sys.executable, "-uP", "-m", PROGRAM]
    ours, theirs = socketpair()
    with theirs:
        words.append(str(theirs.fileno()))
        process = ChildProcess(words, environment=given, pass_fds=(theirs.fileno(),), shown=shown)
    connection: Connection[Any, Any] = Connection(ours.detach())
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has already ended; receiving from it will fail
            connection.send((function, arguments))
    except BaseException:
        connection.close()
        process.stop()
        raise
    return process, connection


# The value of a call, or the RemoteFailure of one that raised.
Result: TypeAlias = tuple[Literal["done", "raised"], Any]


class RemoteError(Exception):
    """Stands for an exception of another process that does not survive pickling; has its type, text and traceback."""


class RemoteFailure(NamedTuple):
    """A serialised exception.

    kind: its qualified type; text: type and message on one line; refusal: whether it is an EngineError; pickled: empty
    if it does not pickle.
    """

    kind: str
    text: str
    trace: str
    refusal: bool
    pickled: bytes

    @classmethod
    def of(cls, error: Exception) -> RemoteFailure:
        """Serialise any exception, even one whose `__str__` raises."""
        try:
            pickled = dumps(error)
        except Exception:  # pickling runs the exception's own code
            pickled = b""
        trace = "".join(traceback.format_exception(error))
        return cls(qualified(type(error)), described(error), trace, isinstance(error, EngineError), pickled)

    def exception(self) -> Exception:
        """Unpickle the exception; if that fails, return an EngineError or RemoteError with its text."""
        try:
            error = loads(self.pickled)
        except Exception:  # unpickling runs the exception's own code
            error = None
        if isinstance(error, Exception) and isinstance(error, EngineError) == self.refusal:
            return error
        return EngineError(self.text) if self.refusal else RemoteError(f"{self.text}\n{self.trace}")


def attempt(function: Callable[..., Any], *arguments: object) -> Result:
    """Call a function. Returns its value, or a RemoteFailure after printing the traceback to this process's log."""
    try:
        return "done", function(*arguments)
    except Exception as error:  # the caller handles it; this process remains usable
        traceback.print_exc()
        return "raised", RemoteFailure.of(error)


def qualified(kind: type) -> str:
    """A class's name with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"
