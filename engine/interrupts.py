"""Signals during an engine call: delivered where the loop can undo a step, deferred everywhere else."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, Final

Handler = Callable[[int, FrameType | None], Any]

SIGNALS: Final = tuple(map(int, signal.valid_signals()))
# The C functions behind `signal.signal` and `signal.getsignal`: ten times as fast, as they look up no enums.
_set: Final[Callable[[int, Any], Any]] = importlib.import_module("_signal").signal
_get: Final[Callable[[int], Any]] = importlib.import_module("_signal").getsignal


class Interrupts:
    """Reroutes every signal that has a Python handler for the duration of a call, `with interrupts:`; calls may nest.

    Within `with interrupts.window:` a signal reaches the caller's own handler at once; elsewhere it is deferred until
    the next window opens or the outermost call ends. Has no effect outside the main thread, where Python delivers no
    signals.

    raised: the exception of a handler in the last window, re-raised at its end if code swallowed or replaced it.
    """

    def __init__(self) -> None:
        self.window = _UndoableSection(self)
        self.raised: BaseException | None = None
        self._number = 0  # the signal whose handler raised `raised`
        self._calls = 0
        self._open = False
        self._late: dict[int, FrameType | None] = {}
        self._handlers: dict[int, Handler] = {}

    def __enter__(self) -> None:
        if not _main_thread():
            return
        if not self._calls:
            try:
                for number in SIGNALS:
                    if callable(handler := _get(number)):
                        self._handlers[number] = handler
                        _set(number, self._receive)
            except BaseException:  # raised by the handler of a pending signal
                self._restore(0)
                raise
        self._calls += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not _main_thread():
            return
        self._calls -= 1
        if not self._calls:
            number = self._number if error is not None and error is self.raised else 0
            self.raised = None
            self._restore(number)

    def _restore(self, again: int) -> None:
        """Restore all handlers and call those of deferred signals, even if others raise.

        again: a signal whose handler is not called, because its exception is already propagating; 0 for none.
        """
        handlers, self._handlers = self._handlers, {}
        try:
            for number, handler in handlers.items():
                _set(number, handler)
        except BaseException:  # raised by a handler already restored; the others are not restored yet
            for number, handler in handlers.items():
                _set(number, handler)
            raise
        finally:
            if self._late:
                late, self._late = self._late, {}
                with ExitStack() as due:
                    for number in late.keys() - {again}:
                        due.callback(handlers[number], number, late[number])

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._late[number] = frame
        self._deliver()

    def _deliver(self) -> None:
        while self._open and self._late:
            number, frame = self._late.popitem()
            try:
                self._handlers[number](number, frame)
            except BaseException as error:
                self.raised, self._number = error, number
                raise


class _UndoableSection:
    """A section in which signals may interrupt a step, because the step can be undone."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        self._interrupts.raised = None
        self._interrupts._open = _main_thread()
        try:
            self._interrupts._deliver()
        except BaseException:
            self._interrupts._open = False
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._interrupts._open = False
        raised = self._interrupts.raised
        if raised is not None and raised is not error:
            raise raised


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
