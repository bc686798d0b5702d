"""Parses JSON written by users; every error is a ValueError with a short message."""

import json
from typing import Any, TypeAlias

from specmatrix.errors import ConfigError, shown

Json: TypeAlias = Any


class TwiceError(ValueError):
    """An object contains a key twice."""


def reject_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Build an object from its pairs. TwiceError on a duplicate key, where json would keep the last."""
    whole = dict(pairs)
    if len(whole) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TwiceError(f"key {shown(twice)} occurs twice in one object")
    return whole


def parse_json(text: str) -> Json:
    """Parse a JSON text.

    Raises ValueError with a message to follow "not JSON: ", also where json raises RecursionError.
    """
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; save it as UTF-8 without one")
    try:
        value = json.loads(text, object_pairs_hook=reject_duplicates)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        line = f"line {error.lineno} " if "\n" in text.strip() else ""
        raise ValueError(f"{what} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no character") from None
    except TwiceError:
        raise
    except ValueError:
        raise ValueError("it has a number of more than 4,300 digits") from None
    return value


def parse_object(source: str, text: str) -> dict[str, Json]:
    """Parse the JSON object of a configuration. ConfigError, which begins with its source, for any other text."""
    try:
        table = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{source} must be a JSON object, got {shown(table)}")
    return table
