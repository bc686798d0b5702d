"""Ends this process when its parent ends, even if the parent is killed."""

from __future__ import annotations

import os
from threading import Thread
from typing import Final

STDIN: Final = 0
STATUS: Final = 1


def exit_with_parent() -> None:
    """From now on the end of standard input ends this process with status 1.

    Standard input must be a pipe whose write end only the parent holds and never writes to.
    """
    Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(STDIN, 1):
        pass
    os._exit(STATUS)
