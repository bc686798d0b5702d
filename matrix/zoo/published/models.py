"""The published checkpoints of `matrix/zoo/data/published.yaml`, which explains its fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

# The head of a repository, where no commit is known.
TIP: Final = "main"
_FILE: Final = Path(__file__).parents[1] / "data" / "published.yaml"
TABLE: Final[dict[str, Any]] = msgspec.yaml.decode(_FILE.read_bytes())


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint on a hub."""

    repo: str
    revision: str
    config: Mapping[str, Any]
    agreement: bool = False
    unverified: tuple[str, ...] = ()


MODELS: Final = msgspec.convert(TABLE["models"], dict[str, Published])
