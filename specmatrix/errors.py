"""The engine's exceptions.

Exception
├── EngineError            a user error: what was wrong, the value, what is allowed
│   ├── ConfigError        a configuration that cannot run
│   ├── RequestError       one bad request; the rest of the batch continues
│   └── NotFiniteError     the target computed NaN or infinite numbers
└── EngineBug              a broken invariant of the engine; never caught and ignored
    ├── LedgerError        KV pages and accounts disagree
    └── KernelError        a device operation broke its contract
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import walk_tb
from typing import Final

MAX_TEXT: Final = 400  # characters
MAX_VALUE: Final = 200


def text_of(value: object) -> str:
    """The start of str(value) on one line; safe even if `__str__` raises."""
    try:
        text = str(value)
        line = " ".join(str.split(text[:MAX_TEXT])) + "..." * (len(text) > MAX_TEXT)
        # Terminals interpret control characters, and lone surrogates cannot be encoded.
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    except BaseException as error:  # user code may raise anything
        if is_interrupt(error):
            raise
        return "its text is unavailable"


def shown(value: object) -> str:
    """The start of a value's repr for an error message; safe where repr raises, as for very long integers."""
    try:
        text = repr(value)
    except BaseException as error:  # a value may be of any class
        if is_interrupt(error):
            raise
        return "an integer of thousands of digits" if type(value) is int else f"a {type(value).__name__}"
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def described(error: BaseException) -> str:
    """An exception's type and text on one line."""
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is KeyboardInterrupt or was raised by a Python signal handler."""
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, KeyboardInterrupt) or any(frame.f_code in handlers for frame in frames)


class EngineError(Exception):
    """A user error; the text is one sentence that a user can act on."""


class ConfigError(EngineError):
    """A configuration that cannot run; the text names the fix."""


class RequestError(EngineError):
    """A request that cannot be served; only this request is refused."""


class NotFiniteError(EngineError):
    """The target computed NaN or infinity for a request's tokens, although its weights are finite."""


class EngineBug(Exception):
    """A broken invariant of the engine; it must not be caught and ignored."""


class LedgerError(EngineBug):
    """A KV ownership invariant does not hold."""


class KernelError(EngineBug):
    """A device operation was called outside its contract or broke it."""


# Minimum similarity of a suggestion: one letter of four may differ. `nonsense` and `none` have 0.67.
ALIKE: Final = 0.75


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most similar to `word`, "" if none is similar enough."""
    close = get_close_matches(word, list(known), n=1, cutoff=ALIKE)
    return close[0] if close else ""
