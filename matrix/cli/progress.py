"""Progress display on stderr; nothing is shown if stderr is a file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Column


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with the elapsed time, for work of unknown length."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}"), Elapsed()) as progress:
        progress.add_task(escape(text), total=None)
        yield


@contextmanager
def counting(total: int) -> Iterator[Callable[[str | None, int], None]]:
    """A progress bar over `total` items; yields a function that shows a text (rich markup; None keeps the last one) and
    advances the count."""
    # Long texts are truncated, so that the bar stays on one line.
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with _progress(SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), Elapsed(), text) as progress:
        task = progress.add_task("", total=total)

        def update(text: str | None, advance: int = 1) -> None:
            progress.update(task, description=text, advance=advance)

        yield update


def _progress(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(
        *columns, console=console, transient=True, expand=True, redirect_stdout=False, disable=not console.is_terminal
    )
