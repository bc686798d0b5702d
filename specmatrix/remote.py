"""Results of calls in another process; any exception can be sent, even one that cannot be pickled."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pickle import dumps, loads
from typing import Any, Literal, NamedTuple, TypeAlias

from specmatrix.errors import EngineError, described

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
