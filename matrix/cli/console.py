"""What a command prints on stdout."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class StdoutConsole(Console):
    """A reader that went away is an error for the command line to tell. rich would end the process with the status of a
    red run."""

    def on_broken_pipe(self) -> None:
        """Called while the BrokenPipeError is handled."""
        self.quiet = True
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
