"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
def replaced(path: Path) -> Iterator[BufferedWriter]:
    """A file that takes the name `path` when the context ends: a reader sees the old file or the new one, never a part.
    Until then it has a random name, so it follows no symlink and collides with no other writer.

    Raises ReportError if the disk is full or the place cannot be written; after any exception `path` is as it was.
    """
    partial = path.with_name(f".{token_hex(8)}.partial")
    try:
        with writes(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                yield file
                publish(file, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def writes(path: Path) -> Iterator[None]:
    """An OSError within the context becomes a ReportError: this place cannot be written."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error


def claimed(path: Path) -> BufferedWriter:
    """A new file of this name, which is the caller's alone until it is closed. ReportError if it is another's.

    An unlocked file was left by an interrupted run and is removed, not truncated, as it may be a hard link. Symlinks
    are not followed.
    """
    # Without waiting for the other end of a pipe.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
    while True:
        with writes(path), ExitStack() as stack:
            file = stack.enter_context(open(path, "ab", opener=lambda name, _: os.open(name, flags, 0o644)))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReportError(f"another run is writing a report in {path.parent}") from None
            # Its owner may have given it another name before it let go.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                if not os.fstat(file.fileno()).st_size:
                    stack.pop_all()
                    return file
                path.unlink()


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


def check_place(folder: Path, *names: str) -> None:
    """Make `folder`; ReportError if files of these names cannot be written there: found now, and not after hours."""
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).is_dir():
                raise OSError(errno.EISDIR, f"{name} is a directory there")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def publish(file: BufferedWriter, path: Path) -> None:
    """Give a finished, open file its name `path`. Raises OSError."""
    file.flush()
    Path(file.name).replace(path)
