"""Files that a user names."""

import errno
import os
from pathlib import Path
from typing import Final

LARGEST: Final = 2**27  # bytes


def read_bytes(path: Path) -> bytes:
    """A file's content. OSError if it cannot be read or has more than `LARGEST` bytes: a device may never end."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def read_text(path: Path) -> str:
    """A file's UTF-8 text. Raises as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(path).decode()
