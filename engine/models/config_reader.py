"""Reads one config.json field by field; every error names the file, the value and what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specmatrix.errors import ConfigError

# Maximum size and maximum number of layers: far above any model, and small enough that loops over them and products of
# a few of them stay feasible.
MOST: Final = 2**31 - 1
MOST_LAYERS: Final = 4096
LARGEST: Final = sys.float_info.max


class ConfigReader:
    """The fields of one config.json. A null field counts as absent."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self.raw = raw
        self.file = file

    def size(self, name: str, default: int | None = None, most: int = MOST) -> int:
        """A positive integer, at most `most`. ConfigError on anything else, or if absent without a default."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self.file}: {name} must be a positive integer, got {value!r}")
        return self._bounded(name, value, most)

    def count(self, name: str, default: int | None = None, most: int = MOST) -> int:
        """An integer from 0 to `most`. ConfigError as for a size."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 0:
            raise ConfigError(f"{self.file}: {name} must be an integer of at least 0, got {value!r}")
        return self._bounded(name, value, most)

    def _bounded(self, name: str, value: int, most: int) -> int:
        if value > most:
            raise ConfigError(f"{self.file}: {name} must be at most {most}, got {value}")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number. ConfigError on anything else."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 < value <= LARGEST:
            raise ConfigError(f"{self.file}: {name} must be a positive number, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false. ConfigError on anything else."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            raise ConfigError(f"{self.file}: {name} must be true or false, got {value!r}")
        return value
