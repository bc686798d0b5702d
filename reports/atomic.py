"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from secrets import token_hex
from typing import IO

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
    Until then it has a random name, so it follows no symlink and collides with no other writer.

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


def claimed(path: Path) -> BufferedWriter:
    """A new file of this name, which is the caller's alone until it is closed. BlockingIOError if it is another's.

    An unlocked file was left by an interrupted run and is removed, not truncated, as it may be a hard link. Symlinks
    are not followed.
    """
    while True:
        file = open(path, "ab", opener=_at_once)  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have given it another name before it let go.
            if is_at(file, path):
                if not os.fstat(file.fileno()).st_size:
                    return file
                path.unlink()
        except BaseException:
            file.close()
            raise
        file.close()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within the context nobody else who holds `folder` writes there: its files are of one run. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # of file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _at_once(path: str, flags: int) -> int:
    """A descriptor without waiting for the other end of a pipe; what is written is no link's."""
    return os.open(path, flags | os.O_NONBLOCK | (os.O_NOFOLLOW if flags & os.O_CREAT else 0), 0o644)


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
