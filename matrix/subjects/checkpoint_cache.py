"""Checkpoints in an engine's own format, kept by their content. Imports the standard library only, as `protocol`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Final

READ: Final = ("config.json", "model.safetensors", "tokenizer.json")


def kept(place: Path, version: str, folders: Sequence[Path], suffix: str, convert: Callable[[Path], None]) -> Path:
    """What `convert` made at the path that it was given, a file or a folder, in `place`.

    folders: the checkpoint's, and those that its form depends on; version: of the converter. Converted once for each
    content of these.
    """
    digest = sha256(version.encode())
    for file in (folder / name for folder in folders for name in READ):
        if file.is_file():
            digest.update(file.read_bytes())
    found = place / f"{folders[0].name}-{digest.hexdigest()[:16]}{suffix}"
    if found.exists():
        return found
    place.mkdir(exist_ok=True)
    partial = found.with_name(f".{token_hex(8)}.partial")
    try:
        convert(partial)
        if not found.exists():  # another process may have been faster
            partial.replace(found)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    return found
