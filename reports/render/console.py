"""The console of a command's standard output."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from textwrap import TextWrapper
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from specmatrix.plain_text import as_given, inert

WIDE: Final = 320


class PlainConsole(Console):
    """Values are inert text; a terminal gets the styles that the console gives them."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of rich's
        super().__init__(**settings)
        if self.is_terminal:
            self.file = as_given(self.file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


class StdoutConsole(PlainConsole):
    """Raises BrokenPipeError for the command line to handle; rich would exit with status 1, which means red."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the BrokenPipeError."""
        self.quiet = True
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))


def table_console() -> StdoutConsole:
    """A console for tables: the terminal at its own width, a file or pipe at WIDE columns."""
    console = StdoutConsole()
    return console if console.is_terminal else StdoutConsole(width=WIDE)


def print_text(text: str) -> None:
    """Print lines; a terminal gets those that are wider broken between words, with what follows indented."""
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
    """Print what a command found, as JSON or as text, and return the exit status 0."""
    if json_:
        print(json.dumps(record, indent=2), flush=True)
    else:
        print_text(text)
    return 0


def print_markdown(text: str) -> None:
    """Print Markdown as it is; a terminal gets its headings, lists and tables, at its width."""
    console = StdoutConsole()
    if console.is_terminal:
        # A quarter of a second, which no file or pipe needs.
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        print(text, flush=True)
