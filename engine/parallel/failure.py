"""An exception sent from a rank to the caller, which must arrive whatever the exception's own code does."""

from __future__ import annotations

import traceback
from pickle import dumps, loads
from typing import NamedTuple

from specmatrix.errors import EngineError


class RankFailed(Exception):
    """An exception on a rank that does not survive pickling: its type, text and traceback."""


class RemoteFailure(NamedTuple):
    """An exception as a rank sends it.

    kind: its type; text: type and message; refusal: whether it is an EngineError; pickled: empty if it does not pickle.
    """

    kind: str
    text: str
    trace: str
    refusal: bool
    pickled: bytes

    @classmethod
    def of(cls, error: Exception) -> RemoteFailure:
        """Works for any exception, even one whose `__str__` raises."""
        try:
            pickled = dumps(error)
        except Exception:  # pickling runs the exception's own code
            pickled = b""
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        text = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(traceback.format_exception(error))
        return cls(kind, text, trace, isinstance(error, EngineError), pickled)

    def exception(self) -> Exception:
        """The exception itself; an EngineError or RankFailed in its place if it cannot be unpickled."""
        try:
            error = loads(self.pickled)
        except Exception:  # unpickling runs the exception's own code
            error = None
        if isinstance(error, Exception) and isinstance(error, EngineError) == self.refusal:
            return error
        return EngineError(self.text) if self.refusal else RankFailed(f"{self.text}\n{self.trace}")
