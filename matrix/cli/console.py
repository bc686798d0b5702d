"""The console of a command's standard output."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class StdoutConsole(Console):
    """Raises BrokenPipeError for the command line to handle; rich would exit with status 1, which means red."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the BrokenPipeError."""
        self.quiet = True
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
