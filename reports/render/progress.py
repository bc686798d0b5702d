"""Progress on stderr: a bar on a terminal, elsewhere a line every LINE_SECONDS."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Final, TypeVar

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Column

from specmatrix.reports.render.console import PlainConsole
from specmatrix.reports.wording import count, duration

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
    line every LINE_SECONDS by `clock`. noun: an item's name, in the singular.
    """

    def __init__(self, progress: Progress, total: int, noun: str, clock: Callable[[], float]) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, red="", left="")
        self._clock = clock
        self._began = self._last = clock()
        self._total = total
        self._noun = noun
        self._done = 0
        self._end = 0.0

    def __call__(self, text: str | None, advance: int = 1, red: int | None = None) -> None:
        """Advance the count and show a text (rich markup; None keeps the last one). red: red items so far."""
        self._done += advance
        now = self._clock()
        after = now - self._began
        if advance:
            self._end = after / self._done * self._total
        left = self._left(self._end - after) if 0 < self._done < self._total else ""
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
def counting(total: int, noun: str, clock: Callable[[], float] = monotonic) -> Iterator[Counter]:
    """A Counter of `total` items."""
    # Long texts are truncated, so that the bar stays on one line.
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    red, left = TextColumn("{task.fields[red]}"), TextColumn("{task.fields[left]}")
    with _progress(SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), red, Elapsed(), left, text) as progress:
        yield Counter(progress, total, noun, clock)


def _progress(*columns: ProgressColumn) -> Progress:
    console = PlainConsole(stderr=True)
    return Progress(
        *columns, console=console, transient=True, expand=True, redirect_stdout=False, disable=not console.is_terminal
    )
