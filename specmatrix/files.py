"""Reads files that users name, and parses sources."""

import ast
import errno
import os
from io import BufferedReader, FileIO
from pathlib import Path
from select import select
from stat import S_ISFIFO
from threading import Lock
from typing import Final

MAX_BYTES: Final = 2**27  # bytes
PATIENCE: Final = 30.0  # seconds
_PARSING: Final = Lock()


class _Pipe(FileIO):
    """A pipe with a timeout for each read."""

    def readinto(self, buffer: "bytearray | memoryview", /) -> int | None:  # type: ignore[override]  # of any buffer
        if not select([self], [], [], PATIENCE)[0]:
            raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing was written to it for {PATIENCE:g} s")
        return super().readinto(buffer)


def opened(path: Path) -> BufferedReader:
    """Open a file for reading. Reading from a pipe raises OSError after `PATIENCE` seconds without data."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    piped = S_ISFIFO(os.fstat(descriptor).st_mode)
    return BufferedReader(_Pipe(descriptor)) if piped else os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Read a file. OSError if it cannot be read or has more than `MAX_BYTES` bytes, as a device may never end."""
    with opened(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def read_text(path: Path) -> str:
    """Read a UTF-8 file. Raises as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(path).decode()


def parsed(source: str) -> ast.Module:
    """Parse a source text, one thread at a time.

    Python 3.11 counts the depth of a tree across threads, so parsing in two may raise SystemError (cpython#106905).
    """
    with _PARSING:
        return ast.parse(source)
