"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from io import BufferedWriter
from pathlib import Path

from specmatrix.reports.schema import ReportError


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8: a reader sees the old file or the new one, never a part.

    Raises ReportError if the disk is full or the place cannot be written; then `path` is as it was.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            # Half of a surrogate pair, as a file name may hold, has no place in UTF-8.
            file.write(text.encode(errors="replace"))
            publish(file, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ReportError(f"cannot write {path}: {error.strerror}") from error


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


def publish(file: BufferedWriter, path: Path) -> None:
    """Give an open file that is finished its name `path`; both survive a power failure. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
    Path(file.name).replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
