"""JSON that a user wrote: whatever is wrong with it is a ValueError in a few words."""

import json
from typing import Any, TypeAlias

from specmatrix.errors import shown

Json: TypeAlias = Any


class TwiceError(ValueError):
    """An object has a key twice."""


def reject_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object of its keys and values. TwiceError if it has a key twice, of which json takes the last."""
    whole = dict(pairs)
    if len(whole) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TwiceError(f"key {shown(twice)} occurs twice in one object")
    return whole


def parse_json(text: str) -> Json:
    """The value of a JSON text.

    Raises ValueError, in words that follow "not JSON: ", also where json raises RecursionError.
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
