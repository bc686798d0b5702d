"""A generated test matrix for speculative decoding, and the reference engine that it tests first."""

from __future__ import annotations

# Imports are kept minimal: Ctrl-C prints a traceback until the command line has installed its handlers.
# ruff: noqa: PTH112, PTH118, PTH120
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from specmatrix.reports.frames import Runs

    # The folder of engine/, matrix/ and the other packages: this one in an installation, its parent in a checkout.
    HOME: Path

__version__ = "0.2.0"
_HERE = os.path.dirname(os.path.realpath(__file__))
_HOME = _HERE if os.path.isdir(os.path.join(_HERE, "engine")) else os.path.dirname(_HERE)
if _HOME != _HERE:
    __path__.append(_HOME)


def __getattr__(name: str) -> Path:
    if name != "HOME":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pathlib import Path

    return Path(_HOME)


def load(*paths: str | Path | Iterable[str | Path]) -> Runs:
    """Load reports of runs (`load("out/a", "out/b")`) as pandas frames.

    Paths are files or directories; the column `run` of each frame distinguishes them. Raises ReportError.
    """
    # Imported lazily: it needs pandas, which the command line and comparisons do not.
    from specmatrix.reports.frames import load as load_runs

    return load_runs(*paths)
