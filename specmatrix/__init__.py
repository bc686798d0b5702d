"""A generated test matrix for speculative decoding, and the reference engine that it tests first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specmatrix.reports.frames import Runs

__version__: Final = "0.1.0"
_HERE: Final = Path(__file__).resolve().parent
# The folder of engine/, matrix/ and the other packages: this one in an installation, its parent in a checkout.
HOME: Final = _HERE if (_HERE / "engine").is_dir() else _HERE.parent
if HOME != _HERE:
    __path__.append(str(HOME))


def load(*paths: str | Path | Iterable[str | Path]) -> Runs:
    """Reports of runs (`load("out/a", "out/b")`) and kill matrices (`load("out/faults.json")`) as pandas frames.

    Paths are files or directories; the column `run` of each frame distinguishes them. Raises ReportError.
    """
    # Imports pandas, which neither the command line nor a comparison needs.
    from specmatrix.reports.frames import load as load_runs

    return load_runs(*paths)
