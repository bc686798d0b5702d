"""Consoles for standard output, and how the command that repeats a cell is written."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from specmatrix.plain_text import as_given, inert

WIDE: Final = 320


class PlainConsole(Console):
    """A console that prints values as plain text, without rich's markup and highlighting."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of rich's
        super().__init__(**settings)
        if self.is_terminal:
            self.file = as_given(self.file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


class StdoutConsole(PlainConsole):
    """Raises BrokenPipeError for the command line to handle; rich would exit with 1, the status of a red run."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the BrokenPipeError."""
        self.quiet = True
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))


def table_console() -> StdoutConsole:
    """A console for tables: a terminal's own width, WIDE columns for a file or pipe."""
    console = StdoutConsole()
    return console if console.is_terminal else StdoutConsole(width=WIDE)


def print_text(text: str) -> None:
    """Print lines; on a terminal, long lines wrap between words with a hanging indent."""
    console = StdoutConsole()
    if console.is_terminal:
        wrapper = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
        lines = []
        for line in text.splitlines():
            wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()) + 2)
            lines += wrapper.wrap(line) or [""]
        text = "\n".join(lines)
    print(text, flush=True)


def print_answer(record: Any, text: str, json_: bool) -> int:  # noqa: ANN401 - what JSON can hold
    """Print a command's result as JSON or text; returns exit status 0."""
    if json_:
        print(json.dumps(record, indent=2), flush=True)
    else:
        print_text(text)
    return 0


def print_markdown(text: str) -> None:
    """Print Markdown; rendered on a terminal, unchanged elsewhere."""
    console = StdoutConsole()
    if console.is_terminal:
        # The import takes 0.25 s, which only a terminal needs.
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        print(text, flush=True)


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
