"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from secrets import token_hex

from specmatrix.plain_text import visible
from specmatrix.reports.schema import ReportError


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, with what a reader's screen would act on as escapes. Raises as `replaced`."""
    with replaced(path) as file:
        # Half of a surrogate pair, as a file name may hold, has no place in UTF-8.
        file.write(visible(text).encode(errors="replace"))


@contextmanager
def replaced(path: Path, durable: bool = True) -> Iterator[BufferedWriter]:
    """A file that takes the name `path` when the context ends: a reader sees the old file or the new one, never a part.
    Until then it has a name that nobody can guess, so that no link is followed and no other writer is met.

    durable: it survives a power failure. Raises ReportError if the disk is full or the place cannot be written, and
    then, as after any other exception, `path` is as it was.
    """
    partial = path.with_name(f".{token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            yield file
            publish(file, path, durable)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise ReportError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def check_place(folder: Path, *names: str) -> None:
    """Make `folder`; ReportError if files of these names cannot be written there: found now, and not after hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).is_dir():
                raise OSError(errno.EISDIR, f"{name} is a directory there")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ReportError(f"cannot write in {folder}: {error.strerror}") from error


def publish(file: BufferedWriter, path: Path, durable: bool = True) -> None:
    """Give an open file that is finished its name `path`; durable: both survive a power failure. Raises OSError."""
    file.flush()
    if durable:
        os.fsync(file.fileno())
    Path(file.name).replace(path)
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
