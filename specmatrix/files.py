"""Reads files that users name, and parses sources."""

import ast
import errno
import os
from pathlib import Path
from threading import Lock
from typing import Final

MAX_BYTES: Final = 2**27  # bytes
_PARSING: Final = Lock()


def read_bytes(path: Path) -> bytes:
    """Read a file. OSError if it cannot be read or has more than `MAX_BYTES` bytes, as a device may never end."""
    with path.open("rb") as file:
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
