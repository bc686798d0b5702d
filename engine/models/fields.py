"""Reading one config.json field by field; every complaint names the file, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.core.errors import ConfigError


class Fields:
    """The fields of one config.json. A field that is null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self.raw = raw
        self.file = file

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer. ConfigError on anything else, or if it is absent and has no default."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self.file}: {name} must be a positive integer, got {value!r}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """An integer of at least 0. ConfigError as for a size."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 0:
            raise ConfigError(f"{self.file}: {name} must be an integer of at least 0, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number. ConfigError on anything else."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) not in (int, float) or not value > 0:
            raise ConfigError(f"{self.file}: {name} must be a positive number, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false. ConfigError on anything else."""
        value = self.raw.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            raise ConfigError(f"{self.file}: {name} must be true or false, got {value!r}")
        return value
