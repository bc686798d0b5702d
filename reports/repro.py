"""Repro commands as they run on this machine, from the working directory."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

CONSOLE: Final = "specmatrix"


def as_called(command: str) -> str:
    """A `specmatrix` command as a shell here runs it.

    The bare name if the shell resolves it to this installation; else its path, relative if below the working directory;
    `python -m specmatrix` if it is not installed. Reports hold the bare name, as they are read on other machines.
    """
    name, space, rest = command.partition(" ")
    return f"{_console()}{space}{rest}" if name == CONSOLE else command


def _console() -> str:
    beside = Path(sys.executable).with_name(CONSOLE)
    if not beside.is_file():
        return f"{shlex.quote(sys.executable)} -m {CONSOLE}"
    found = shutil.which(CONSOLE)
    if found is not None and Path(found).samefile(beside):
        return CONSOLE
    here = Path.cwd()
    path = str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)
    return shlex.quote(path if os.sep in path else f"./{path}")
