"""Ctrl-C and SIGTERM: a command ends with one line and the status that shells expect."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType
from typing import Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SENTENCE: Final = "interrupted"


class Stopped(BaseException):
    """One of SIGNALS was received. A BaseException, so that no error handler, nor typer, catches it.

    status: the exit status by shell convention.
    """

    def __init__(self, number: int, sentence: str = SENTENCE) -> None:
        super().__init__(sentence)
        self.number = number
        self.status: Final = 128 + number

    def saying(self, sentence: str) -> Self:
        """A copy of the exception with another message."""
        return type(self)(self.number, sentence)


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the context SIGNALS raise Stopped, except those that this process ignores.

    During an import they end the process with the same message and status instead.

    Only the main thread can install handlers; in other threads nothing changes.
    """
    heard = SIGNALS if current_thread() is main_thread() else ()
    before = {number: signal.getsignal(number) for number in heard}
    taken = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Defer the handlers of SIGNALS to the end of the context, where that of the first received signal runs.

    Blocking the signals is not enough: if another thread receives one, its handler still runs in the main thread.
    """
    heard = SIGNALS if current_thread() is main_thread() else ()
    handlers = {number: handler for number in heard if callable(handler := signal.getsignal(number))}
    due: list[tuple[int, FrameType | None]] = []
    try:
        for number in handlers:
            signal.signal(number, lambda *received: due.append(received))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if due:
            handlers[signal.Signals(due[0][0])](*due[0])


def _stop(number: int, frame: FrameType | None) -> None:
    # The importing code may swallow the exception, and some modules cannot be imported again after one.
    if _is_importing(frame):
        with suppress(OSError):
            os.write(2, f"{SENTENCE}\n".encode())
        os._exit(128 + number)
    raise Stopped(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
