"""Progress on the terminal (stderr) while something takes its time; nothing where stderr is a file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with the time, for work whose length is not known."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}"), Elapsed()) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def counting(total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar over `total` things; the function that it gives shows a text (rich markup) and adds to the count."""
    with _progress(BarColumn(), MofNCompleteColumn(), Elapsed(), TextColumn("{task.description}")) as progress:
        task = progress.add_task("", total=total)

        def tell(text: str, advance: int = 1) -> None:
            progress.update(task, description=text, advance=advance)

        yield tell


def _progress(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
