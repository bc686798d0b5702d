"""The child processes of this one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def children() -> list[int]:
    """Ids of the processes that this one started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, parent = path.read_bytes().rpartition(b") ")[2].split()[:2]
            if int(parent) == os.getpid() and state != b"Z":
                found.append(int(path.parent.name))
    return found
