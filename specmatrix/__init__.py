"""A generated test matrix for speculative decoding, and the engine that it tests first."""

from pathlib import Path
from typing import Final

__version__: Final = "0.1.0"
_HERE: Final = Path(__file__).resolve().parent
# Where engine/, matrix/ and the other packages lie: in an installation within this folder, in a checkout beside it.
HOME: Final = _HERE if (_HERE / "engine").is_dir() else _HERE.parent
if HOME != _HERE:
    __path__.append(str(HOME))
