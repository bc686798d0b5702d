"""Atomic file writes and locks."""

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
    """Atomically write UTF-8 text, with control characters escaped. Raises as `replaced`."""
    with replaced(path) as file:
        # File names may contain lone surrogates, which UTF-8 cannot encode.
        file.write(visible(text).encode(errors="replace"))


@contextmanager
def replaced(path: Path) -> Iterator[BufferedWriter]:
    """A temporary file that replaces `path` when the context ends, so that readers never see a partial file. Its random
    name follows no symlink and collides with no other writer.

    Raises ReportError if the disk is full or the directory is not writable; any exception leaves `path` unchanged.
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
    """Converts OSErrors to ReportErrors that name `path`."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error


def claimed(path: Path) -> BufferedWriter:
    """Create and lock `path`; closing it releases the lock. ReportError if another process holds it.

    An unlocked file is the leftover of an interrupted run. It is removed, not truncated, because it may be a hard link.
    Symlinks are not followed.
    """
    # O_NONBLOCK: opening a FIFO must not wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
    while True:
        with writes(path), ExitStack() as stack:
            file = stack.enter_context(open(path, "ab", opener=lambda name, _: os.open(name, flags, 0o644)))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReportError(f"another run is writing a report in {path.parent}") from None
            # The previous owner may have renamed it before releasing the lock.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                if not os.fstat(file.fileno()).st_size:
                    stack.pop_all()
                    return file
                path.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks `folder`, so that its files come from one run. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_place(folder: Path, *names: str) -> None:
    """Create `folder`, and raise ReportError now, not after hours, if files of these names cannot be written there."""
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).is_dir():
                raise OSError(errno.EISDIR, f"{name} is a directory there")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def publish(file: BufferedWriter, path: Path) -> None:
    """Flush an open file and rename it to `path`. Raises OSError."""
    file.flush()
    Path(file.name).replace(path)
