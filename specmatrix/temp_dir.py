"""Folders in the temporary directory that are removed with their process; creating one removes those of killed ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "specmatrix-"
# A file in each folder, locked while the process that created the folder is alive.
LOCK: Final = ".alive"


class TempDir:
    """A new folder `path`, empty except for its lock, until `close` or the end of a `with`.

    kind: part of its name. Folders that killed processes left are removed first.
    """

    def __init__(self, kind: str) -> None:
        for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
            _remove_unowned(lock)
        self._folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-")
        self.path = Path(self._folder.name)
        fresh = self.path / f"{LOCK}.fresh"
        self._lock = os.open(fresh, os.O_CREAT | os.O_RDONLY, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Renamed when already locked, so that it is never seen unlocked under its final name.
        fresh.rename(self.path / LOCK)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
        os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()


def _remove_unowned(lock: Path) -> None:
    try:
        held = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # it was just removed, or it is another user's
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent)
    except OSError:  # its process is alive, or another process is removing it
        return
    finally:
        os.close(held)
