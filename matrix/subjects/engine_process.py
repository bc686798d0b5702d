"""A running engine in its own process, under time limits.

Main loop of an engine's process: receives calls (method, arguments); `start` runs on the subject, every other method
on the engine that it returned.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any, Final

from specmatrix.child_process import Result, attempt, qualified, start
from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.protocol import Answer, Diverged, EngineCommand, RunningEngine, Subject
from specmatrix.temp_dir import TempDir

# Properties of an engine; all other names are methods.
READ: Final = ("resolved", "start_hash")


def serve(subject: Subject, connection: Connection[Result, Any]) -> None:
    """Answer calls until the other side closes the connection."""
    engine: RunningEngine | None = None

    def call(method: str, arguments: tuple[Any, ...]) -> object:
        nonlocal engine
        if method == "start":
            engine = subject.start(*arguments)
            return None
        found = getattr(engine, method)
        return found if method in READ else found(*arguments)

    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        answer = attempt(call, *asked)
        sys.stdout.flush()
        connection.send(answer)


OUTPUT_TAIL: Final = 2000  # characters
EXIT_SECONDS: Final = 5.0
# Share of a core below which an engine waits instead of computing.
IDLE: Final = 0.02
REWRITTEN: Final = "the subject reports that it runs another value"


class EngineFailed(Exception):
    """An engine crashed, hung or broke the protocol; the message ends with the end of its log. verb: the call of the
    protocol that failed; traceback: of the exception that it raised, "" if none."""

    def __init__(self, message: str, verb: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.verb, self.traceback = verb, traceback


def _reading(method: str) -> Callable[[RemoteEngine], Any]:
    """A method that calls the one of this name in the engine's own process."""
    return lambda engine: engine.call(method)


class RemoteEngine(RunningEngine):
    """An engine in another process, whose readings are calls of its methods."""

    def call(self, method: str) -> Any:  # noqa: ANN401 - as the method
        """Call a method there."""
        raise NotImplementedError

    counters, journal, work, resources, trace, memory, ranks = map(
        _reading, ("counters", "journal", "work", "resources", "trace", "memory", "ranks")
    )


class EngineProcess(RemoteEngine):
    """Starts a command's engine in a new process. ConfigError if it refuses the command, EngineFailed if it fails.

    A failure or `close` ends the process and everything that it started, and removes its temporary files.
    """

    def __init__(self, subject: Subject, command: EngineCommand) -> None:
        self._subject, self._command = subject, command
        self.answer_seconds = subject.profile.answer_seconds
        self._connection: Connection | None = None
        self._temporary = TempDir("engine")
        environment = {"TMPDIR": str(self._temporary.path), **command.environment}
        self._process, self._connection = start(serve, subject, environment=environment, python=subject.python())
        try:
            self.call("start", command, seconds=subject.profile.start_seconds)
            self._readback: Mapping[str, Any] = self.call("readback")
            self._own: Mapping[str, Any] = self.call("resolved")
            self._hash: str = self.call("start_hash")
        except BaseException:
            self.stop()
            raise

    @property
    def ended(self) -> bool:
        """Whether it was closed, stopped or failed."""
        return self._connection is None

    @cached_property
    def resolved(self) -> Mapping[str, Any]:
        """The flags with their running values, and the engine's own resolved values; `rewrites` are the flags whose
        running value differs from the command's."""
        flags = dict(self._command.flags)
        rewrites = [
            {"field": flag, "asked": asked, "got": self._readback[flag], "reason": REWRITTEN}
            for flag, asked in flags.items()
            if flag in self._readback and self._readback[flag] != asked
        ]
        running = {flag: self._readback.get(flag, asked) for flag, asked in flags.items()}
        return {**running, **self._own, "rewrites": [*self._own.get("rewrites", ()), *rewrites]}

    @property
    def start_hash(self) -> str:
        """The engine's own hash, else one of `resolved` and the checkpoints."""
        what = [self.resolved, dict(self._command.checkpoints), self._command.variant]
        return self._hash or hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def version(self) -> str | None:
        """The engine's version, if only the running engine says it."""
        return self._readback.get("version")

    def generate(self, asks: Sequence[Any]) -> list[Answer]:
        """The answers. EngineFailed unless there is one for each ask, in order and under its id."""
        answers = self.call("generate", tuple(asks))
        wrong = ""
        if not isinstance(answers, list) or not all(isinstance(answer, Answer) for answer in answers):
            wrong = f"generate must return a list of Answer, got {answers!r:.60}"
        elif [answer.name for answer in answers] != [ask.id for ask in asks]:
            got, due = [answer.name for answer in answers], [ask.id for ask in asks]
            wrong = f"the answers must have the asks' ids in order, {due!r:.60}, got {got!r:.60}"
        if wrong:
            raise self._failure(wrong, "generate")
        return list(answers)

    def readback(self) -> Mapping[str, Any]:
        self._readback = self.call("readback")
        return self._readback

    def close(self) -> None:
        """End the engine and its process; a second call does nothing."""
        if self.ended:
            return
        try:
            self.call("close")
        finally:
            self.stop()

    def call(self, method: str, *arguments: object, seconds: float | None = None) -> Any:  # noqa: ANN401 - as the method
        assert self._connection is not None, "the engine is closed"
        limit = self.answer_seconds if seconds is None else seconds
        try:
            self._connection.send((method, arguments))
            if not self._answers(self._connection, limit):
                raise self._failure(f"{method} took more than {limit:g} s", method)
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.wait(EXIT_SECONDS)
            how = "closed its connection" if code is None else f"ended with status {code}"
            raise self._failure(f"the engine {how} during {method}", method) from None
        if kind == "done":
            return value
        # An exception of the engine's own packages is not unpickled: it could import them here.
        error = value.exception() if value.refusal or value.kind == qualified(Diverged) else None
        if isinstance(error, Diverged) or (isinstance(error, ConfigError) and method == "start"):
            raise error
        raise self._failure(f"{method} failed with {value.text}", method, value.trace)

    def _answers(self, connection: Connection, limit: float) -> bool:
        """Whether an answer arrives within `limit` seconds or, while the engine keeps computing, within `limit` seconds
        of its own CPU time."""
        begin = before = self._process.cpu_seconds()
        if connection.poll(limit):
            return True
        piece = max(limit / 10, 0.1)
        while begin is not None and before is not None:
            now = self._process.cpu_seconds()
            if now is None or now - begin >= limit or now - before < IDLE * piece:
                return False
            before = now
            if connection.poll(piece):
                return True
        return False

    def _failure(self, text: str, verb: str, trace: str = "") -> EngineFailed:
        """Build the error once the process has ended and its log is complete."""
        self.stop()
        log = self._process.output_end(OUTPUT_TAIL)
        return EngineFailed(f"{text}; " + (f"end of its log:\n{log}" if log else "its log is empty"), verb, trace)

    def pause(self) -> None:
        """Suspend the process, so that it never answers."""
        self._process.pause()

    def stop(self) -> None:
        """End the process without closing the engine first."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._process.stop()
            self._temporary.close()


def start_engine(subject: Subject, command: EngineCommand) -> RunningEngine:
    """Start the command's engine, in its own process unless `profile.in_process`."""
    return subject.start(command) if subject.profile.in_process else EngineProcess(subject, command)
