"""Consoles for standard output, how the command that repeats a cell is written, and progress on stderr: a bar on a
terminal, elsewhere a line every LINE_SECONDS."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import TextWrapper
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.segment import Segment
from rich.table import Column

from specmatrix.plain_text import as_given, inert
from specmatrix.reports.wording import count, duration

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


T = TypeVar("T")
LINE_SECONDS: Final = 30.0


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with the elapsed time, for work of unknown duration."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}"), Elapsed()) as progress:
        progress.add_task(escape(text), total=None)
        ended = Event()
        if progress.disable:
            Thread(target=_update, args=(text, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def awaited(items: Iterator[T], text: str) -> Iterator[T]:
    """Yields the items, with a spinner while waiting for the next one."""
    while True:
        with waiting(text):
            item = next(items, None)
        if item is None:
            return
        yield item


def _update(text: str, ended: Event) -> None:
    began = monotonic()
    while not ended.wait(LINE_SECONDS):
        _print(f"{text}, after {duration(monotonic() - began)}")


class Counter:
    """Shows completed and red items of `total`, and the time left at the pace so far: a bar on a terminal, elsewhere a
    line every LINE_SECONDS by `clock`. noun: an item's name, in the singular. first: what delays the first item, shown
    in place of the time left until one completes.
    """

    def __init__(self, progress: Progress, total: int, noun: str, clock: Callable[[], float], first: str) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, red="", left="")
        self._clock = clock
        self._began = self._last = clock()
        self._total = total
        self._noun = noun
        self._done = 0
        self._first, self._end = first, 0.0

    def __call__(self, text: str | None, advance: int = 1, red: int | None = None) -> None:
        """Advance the count and show a text (rich markup; None keeps the last one). red: red items so far."""
        self._done += advance
        now = self._clock()
        after = now - self._began
        if advance:
            self._end = after / self._done * self._total
        left = self._left(self._end - after) if 0 < self._done < self._total else ""
        left = left if self._done else self._first
        reds = "" if red is None else f"{red:,} red"
        bold = f"[red]{reds}[/red]" if red else ""
        self._progress.update(self._task, description=text, advance=advance, red=bold, left=left)
        if self._progress.disable and now - self._last >= LINE_SECONDS:
            self._last = now
            done = f"{self._done:,} of {count(self._total, self._noun)}"
            _print(", ".join(filter(None, (done, reds, f"after {duration(after)}", left))))

    @staticmethod
    def _left(seconds: float) -> str:
        return "under 10 s left" if seconds < 10 else f"about {duration(seconds)} left"


def _print(line: str) -> None:
    """Print to stderr; if it is not writable, continue without progress lines."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # Python would fail when it flushes the rest of the buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def counting(total: int, noun: str, clock: Callable[[], float] = monotonic, first: str = "") -> Iterator[Counter]:
    """A Counter of `total` items."""
    # Long texts are truncated, so that the bar stays on one line.
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    red, left = TextColumn("{task.fields[red]}"), TextColumn("{task.fields[left]}")
    with _progress(SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), red, Elapsed(), left, text) as progress:
        yield Counter(progress, total, noun, clock, first)


def _progress(*columns: ProgressColumn) -> Progress:
    console = PlainConsole(stderr=True)
    return Progress(
        *columns, console=console, transient=True, expand=True, redirect_stdout=False, disable=not console.is_terminal
    )
