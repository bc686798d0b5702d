"""What options of several commands share; options.yaml has their descriptions."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Final

WORKERS: Final = min(os.cpu_count() or 1, 8)


def load_plugins(files: list[Path] | None) -> list[Path]:
    """The files of --plugin, once they are loaded, before the options behind them are read."""
    import_module("specmatrix.matrix.run.plugins").load_plugins(files or ())
    return files or []
