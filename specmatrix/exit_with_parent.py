"""Ends this process, and the process group that it leads, when its parent ends, even if the parent is killed."""

from __future__ import annotations

import os
import signal
from threading import Thread
from typing import Final

STDIN: Final = 0
STATUS: Final = 1


def exit_with_parent() -> None:
    """Start a thread that, at the end of stdin, kills the group that this process leads, or exits with status 1.

    Standard input must be a pipe whose write end only the parent holds and never writes to.
    """
    Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(STDIN, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(STATUS)
