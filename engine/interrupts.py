"""Ctrl-C during an engine call: delivered where the loop can undo a step, deferred everywhere else."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

SIGINT: Final = int(signal.SIGINT)
# `signal.signal` without its enum look-up of each handler, which takes ten times as long.
_set: Final[Callable[[int, Any], Any]] = importlib.import_module("_signal").signal


class Interrupts:
    """Reroutes SIGINT for the duration of a call, `with interrupts:`; calls may nest.

    Within `with interrupts.window:` a signal reaches the caller's own handler at once; elsewhere it is deferred until
    the next window opens or the outermost call ends. Has no effect outside the main thread, where Python delivers no
    signals, or if SIGINT has no Python handler.
    """

    def __init__(self) -> None:
        self.window = _UndoableSection(self)
        self._calls = 0
        self._open = False
        self._late: tuple[int, FrameType | None] | None = None
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> None:
        if not _main_thread():
            return
        if not self._calls:
            # May raise from a signal that is already pending; nothing has changed at this point.
            handler = _set(SIGINT, self._receive)
            if callable(handler):
                self._handler = handler
            else:
                _set(SIGINT, handler)
        self._calls += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not _main_thread():
            return
        self._calls -= 1
        if self._calls or self._handler is None:
            return
        handler, self._handler = self._handler, None
        _set(SIGINT, handler)
        late, self._late = self._late, None
        if late is not None and kind is not KeyboardInterrupt:
            handler(*late)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._late = number, frame
        self._deliver()

    def _deliver(self) -> None:
        if self._open and self._late is not None and self._handler is not None:
            late, self._late = self._late, None
            self._handler(*late)


class _UndoableSection:
    """The code in which a step can be undone, so that a signal may interrupt it."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        self._interrupts._open = _main_thread()
        self._interrupts._deliver()

    def __exit__(self, *_: object) -> None:
        self._interrupts._open = False


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
