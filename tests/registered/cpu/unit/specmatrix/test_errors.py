import signal

import pytest

from specmatrix import errors
from tests.support.misbehaving_drafter import ExitsInText, NumberForText, Wordless


def test_bugs_escape_a_handler_for_user_errors():
    for error in (errors.ConfigError, errors.RequestError):
        assert issubclass(error, errors.EngineError) and not issubclass(error, errors.EngineBug)
    for error in (errors.LedgerError, errors.KernelError):
        assert issubclass(error, errors.EngineBug) and not issubclass(error, errors.EngineError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ValueError(), ""),
        (ValueError("x" * 400), "x" * 400),
        (ValueError("x" * 10**7), "x" * 400 + "..."),
        (ValueError("\x1b[31m\0"), "\\x1b[31m\\x00"),
        (ValueError("half \udc80 of a pair"), "half \\udc80 of a pair"),
        (Wordless(), "its text is unavailable"),
        (ExitsInText(), "its text is unavailable"),
        (NumberForText(), "its text is unavailable"),
    ],
)
def test_an_errors_text_is_one_short_line_whatever_it_is(error, text):
    assert errors.text_of(error) == text
    assert errors.described(error) == (f"{type(error).__name__}: {text}" if text else type(error).__name__)


class Handler:
    def raises(self, number: int, frame: object) -> None:
        raise TimeoutError


@pytest.mark.parametrize("made", [errors.text_of, errors.shown])
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeoutError)])
def test_an_interrupt_while_a_text_is_made_stays_one(made, number, kind):
    class Slow(Exception):
        def __str__(self) -> str:
            signal.raise_signal(number)
            return ""

        __repr__ = __str__

    before = signal.signal(signal.SIGALRM, Handler().raises)
    try:
        with pytest.raises(kind):
            made(Slow())
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_signals_handler_raises_interrupts():
    before = signal.signal(signal.SIGUSR1, Handler().raises)
    try:
        with pytest.raises(TimeoutError) as caught:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(TimeoutError) as own:
            raise TimeoutError
        assert errors.is_interrupt(caught.value) and not errors.is_interrupt(own.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert errors.is_interrupt(KeyboardInterrupt()) and not errors.is_interrupt(SystemExit())
