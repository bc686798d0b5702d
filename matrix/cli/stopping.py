"""Being told to stop: Ctrl-C and SIGTERM end a command with a sentence that says what it leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SENTENCE: Final = "interrupted; what was not finished is not a report"


class Stopped(BaseException):
    """One of SIGNALS came. It goes through whatever catches errors, and the command line library with it.

    status: what a shell expects of a command that ended so.
    """

    def __init__(self, number: int, sentence: str = SENTENCE) -> None:
        super().__init__(sentence)
        self.number = number
        self.status: Final = 128 + number

    def saying(self, sentence: str) -> Self:
        """The same stop with what came of the command."""
        return type(self)(self.number, sentence)


@contextmanager
def stoppable() -> Iterator[None]:
    """The signals raise Stopped meanwhile, but for those that this process was told to ignore.

    Only the main thread can have it so; in another one nothing changes.
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


def _stop(number: int, frame: object) -> None:
    raise Stopped(number)
