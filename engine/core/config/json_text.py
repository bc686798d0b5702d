"""JSON that a user wrote: whatever is wrong with it is a ValueError in a few words."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

Json: TypeAlias = Any


def parse_json(text: str, pairs: Callable[[list[tuple[str, Json]]], Json] | None = None) -> Json:
    """The value of a JSON text; `pairs` makes an object of its keys and values.

    Raises ValueError, in words that follow "not JSON: ", also where json raises RecursionError.
    """
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; save it as UTF-8 without one")
    try:
        value = json.loads(text, object_pairs_hook=pairs)
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
    except ValueError:
        raise ValueError("it has a number of more than 4,300 digits") from None
    return value
