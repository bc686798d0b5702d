"""The program of a child process: `python -m specmatrix.child FD` receives a function and its arguments through the
connection with file descriptor FD, and calls it with that connection as last argument. It ends with its parent."""

from __future__ import annotations

import os
import sys
from io import StringIO
from multiprocessing.connection import Connection
from typing import Any

import specmatrix.user_file  # noqa: F401 - finds the classes of a user's files
from specmatrix.exit_with_parent import exit_with_parent


def main(descriptor: int) -> None:
    """Receive a function and its arguments from the parent, and call it."""
    exit_with_parent()
    # The real standard input signals the parent's end; reading from it would block until then.
    sys.stdin = StringIO()
    os.set_inheritable(descriptor, False)
    connection: Connection[Any, Any] = Connection(descriptor)
    function, arguments = connection.recv()
    function(*arguments, connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
