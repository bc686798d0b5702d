"""Main loop of an engine's process: receives calls (method, arguments); `start` runs on the subject, every other method
on the engine that it returned."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any, Final

from specmatrix.matrix.subjects.protocol import RunningEngine, Subject
from specmatrix.remote import Result, attempt

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
