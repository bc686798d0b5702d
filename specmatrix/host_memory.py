"""The host memory that this process may still allocate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def host_memory() -> int | None:
    """Host memory in bytes that this process may still allocate; None if unknown."""
    found = re.search(r"^MemAvailable: +(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return min([*([1024 * int(found[1])] if found else []), *group_memory()], default=None)


def group_memory(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Memory below the limit of each of this process's control groups; the page cache counts as free."""
    for line in _text(groups).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top, limit, used = (
            (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if kinds
            else (root, "memory.max", "memory.current")
        )
        inner = top / path.strip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(top) and (most := _text(group / limit).strip()).isdecimal():
                files = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                yield int(most) - int(_text(group / used)) + (int(files[1]) if files else 0)


def _text(file: Path) -> str:
    """The text of a file, "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
