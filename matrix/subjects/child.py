"""The process of an engine: `python -m specmatrix.matrix.subjects.child FD`.

Over the connection with file descriptor FD it receives the Subject, then calls (method, arguments), and answers each
with (status, result): of `start` on the subject, of every other method on the engine that it returned.
"""

from __future__ import annotations

import os
import sys
import traceback
from io import StringIO
from multiprocessing.connection import Connection
from typing import Any, Final

from specmatrix.errors import ConfigError
from specmatrix.exit_with_parent import exit_with_parent
from specmatrix.matrix.subjects.protocol import Diverged, RunningEngine, Subject

# Statuses of an answer: the result, the message of what refuses the command, a divergence of ranks, or the text of an
# exception with its traceback.
DONE: Final = "done"
REFUSED: Final = "refused"
DIVERGED: Final = "diverged"
FAILED: Final = "failed"
# Properties of an engine; everything else is called.
READ: Final = ("resolved", "start_hash")


def serve(connection: Connection) -> None:
    """Answer calls until the other side closes the connection."""
    subject: Subject = connection.recv()
    engine: RunningEngine | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if method == "start":
                engine, result = subject.start(*arguments), None
            else:
                result = getattr(engine, method)
                result = result if method in READ else result(*arguments)
            answer: tuple[str, Any] = (DONE, result)
        except ConfigError as error:
            answer = (REFUSED, str(error))
        except Diverged as found:
            answer = (DIVERGED, found.agreement)
        except Exception as error:  # the engine's, which its cell reports
            traceback.print_exc()
            answer = (FAILED, (" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc()))
        sys.stdout.flush()
        connection.send(answer)


if __name__ == "__main__":
    exit_with_parent()
    # Standard input is the parent's; reading from it would wait for the parent's end.
    sys.stdin = StringIO()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    serve(Connection(descriptor))
