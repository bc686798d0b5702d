"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from specmatrix.reports.schema import ReportError


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8: a reader sees the old file or the new one, never a part.

    Raises ReportError if the disk is full or the place cannot be written; then `path` is as it was.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
        try:
            # Half of a surrogate pair, as a file name may hold, has no place in UTF-8.
            write_all(descriptor, text.encode(errors="replace"))
            publish(descriptor, partial, path)
        finally:
            os.close(descriptor)
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


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data`; a file system may take only a part at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def publish(descriptor: int, partial: Path, path: Path) -> None:
    """Give the finished file `partial` its name `path`; both survive a power failure. Raises OSError."""
    os.fsync(descriptor)
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
