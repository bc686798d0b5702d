"""Progress on the terminal (stderr) while something takes its time; nothing where stderr is a file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Column


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with the time, for work whose length is not known."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}"), Elapsed()) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def counting(total: int) -> Iterator[Callable[[str | None, int], None]]:
    """A bar over `total` things; the function that it gives shows a text (rich markup; None leaves the last one) and
    adds to the count."""
    # Wide texts are cut, so that the bar stays on one line.
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with _progress(SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), Elapsed(), text) as progress:
        task = progress.add_task("", total=total)

        def tell(text: str | None, advance: int = 1) -> None:
            progress.update(task, description=text, advance=advance)

        yield tell


def _progress(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(
        *columns, console=console, transient=True, expand=True, redirect_stdout=False, disable=not console.is_terminal
    )
