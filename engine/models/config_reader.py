"""Reads a checkpoint's JSON files; every error names the file, the field, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final

from specmatrix.errors import ConfigError, shown
from specmatrix.files import read_text
from specmatrix.json_text import parse_json

# Maximum size and maximum number of layers: far above any model, and small enough that loops over them and products of
# a few of them stay feasible.
MAX_INT: Final = 2**31 - 1
MAX_LAYERS: Final = 4096
# Models compute in float32.
MAX_NUMBER: Final = 2.0**127


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. ConfigError if the file cannot be read or holds anything else."""
    try:
        mode = file.stat().st_mode
        if not (S_ISREG(mode) or S_ISDIR(mode)):  # reading a pipe or a device may never end
            raise ConfigError(f"{file} cannot be read (not a regular file); a checkpoint folder needs it")
        raw = parse_json(read_text(file))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing; a checkpoint folder needs it") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); a checkpoint folder needs it") from None
    except ValueError as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError(f"{file} is not valid JSON ({why}); the file is truncated or damaged") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must hold a JSON object, got {type(raw).__name__}")
    return raw


def is_number(value: object) -> bool:
    """Whether a JSON value is a number above 0 with which a model can compute."""
    return type(value) in (int, float) and 0 < value <= MAX_NUMBER  # type: ignore[operator]  # type checked above


class _Fields(dict[str, Any]):
    """A JSON object that records which of its keys were read."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.unread = {name for name, value in raw.items() if value is not None}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any JSON
        self.unread.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401 - any JSON
        self.unread.discard(name)
        return super().get(name, default)


class ConfigReader:
    """The fields of one config.json, or of the object `within` it. A null field counts as absent."""

    def __init__(self, raw: Mapping[str, Any], file: Path, within: str = "") -> None:
        self.raw: Final = raw if isinstance(raw, _Fields) else _Fields(raw)
        self.file = file
        self.within = within
        self._groups: dict[str, ConfigReader] = {}

    def value(self, name: str, good: Callable[[Any], bool], allowed: str, default: object = None) -> Any:  # noqa: ANN401 - any JSON
        """A field for which `good` holds. ConfigError on anything else, or if it is absent without a good default."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not good(value):
            raise ConfigError(f"{self.file}: {self.within}{name} must be {allowed}, got {shown(value)}")
        return value

    def size(self, name: str, default: int | None = None, most: int = MAX_INT, least: int = 1) -> int:
        """An integer from `least` to `most`. ConfigError as for a value."""
        allowed = "a positive integer" if least == 1 else f"an integer of at least {least}"
        value: int = self.value(name, lambda v: type(v) is int and v >= least, allowed, default)
        if value > most:
            raise ConfigError(f"{self.file}: {self.within}{name} must be at most {most}, got {shown(value)}")
        return value

    def count(self, name: str, default: int | None = None, most: int = MAX_INT) -> int:
        """An integer from 0 to `most`. ConfigError as for a value."""
        return self.size(name, default, most, least=0)

    def number(self, name: str, default: float) -> float:
        """A positive number. ConfigError as for a value."""
        return float(self.value(name, is_number, "a positive number", default))

    def flag(self, name: str, default: bool) -> bool:
        """true or false. ConfigError as for a value."""
        return bool(self.value(name, lambda v: type(v) is bool, "true or false", default))

    def group(self, name: str) -> ConfigReader:
        """The fields of an object, none if it is absent. ConfigError as for a value."""
        raw = self.value(name, lambda v: isinstance(v, dict), "an object", {})
        return self._groups.setdefault(name, ConfigReader(raw, self.file, f"{self.within}{name}."))

    def unread(self) -> list[str]:
        """The keys that nothing has read so far, those of objects with the object's name in front."""
        inner = [key for group in self._groups.values() for key in group.unread()]
        return [f"{self.within}{key}" for key in sorted(self.raw.unread)] + inner

    def layer_ids(self, name: str) -> list[int] | None:
        """A list of layer ids; None if it is absent. ConfigError as for a value."""

        def good(ids: object) -> bool:
            listed = isinstance(ids, list) and bool(ids)
            return listed and all(type(i) is int and 0 <= i < MAX_LAYERS for i in ids)  # type: ignore[attr-defined]  # a list

        return None if self.raw.get(name) is None else list(self.value(name, good, "a list of layer ids"))
