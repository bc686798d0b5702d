"""Seeded mutations of JSON: other values, keys and types, and texts that no JSON writer writes."""

import json
from collections.abc import Iterator
from copy import deepcopy
from random import Random

VALUES = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 2**53, 2**63, -(2**63), 1e308, -1e308, 5e-324, "", "0", "PASS",
    "FAIL", "INFRA", "refused", "unknown", "²", "1e999", "9" * 5000, "x" * 20_000, "\0", "\x1b[31m", "a\nb", "\u2028",
    "é", "[/]", "| `x` <b>&amp;", "@everyone #1 ~a~ *b* _c_ [d](e)", [], {}, [[]], [None], [0, 0], [1e308, 1e308],
    ["a", 1], {"a": None}, {"": {}}, {"0": [1]},
)  # fmt: skip
# What json.dumps does not write, in place of a text that stands for it.
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" + b"0" * 400, b"9" * 5000, b"-", b"01", b"0x1",
    b"tru", b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xed\xa0\x80"',
    b'"\xff"', b'"\\u0000"', b'"a\nb"', b'"', b"{", b"}", b",", b"",
)  # fmt: skip
MARK = "a token goes here"


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def with_other_value(line: bytes, draw: Random) -> bytes:
    """A line of which one value or key is another, a few times."""
    record = json.loads(line)
    token = b""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        *path, last = draw.choice(list(places(record)) or [()])
        holder = record
        for key in path:
            holder = holder[key]
        kind = draw.randrange(10)
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(draw.choice(VALUES))] = holder.pop(last)
        elif kind == 2 and isinstance(holder, list):
            holder.append(holder[last])
        elif kind == 3:
            holder[last] = MARK
            token = draw.choice(TOKENS)
        elif kind == 4:
            holder[last] = [holder[last]]
        elif kind == 5:
            *others, name = draw.choice(list(places(record)))
            source = record
            for key in others:
                source = source[key]
            # A copy, so that no value holds itself.
            holder[last] = json.loads(json.dumps(source[name]))
        else:
            alike = [value for value in VALUES if type(value) is type(holder[last])]
            holder[last] = deepcopy(draw.choice(alike if kind < 8 and alike else VALUES))
        if not record:
            break
    return json.dumps(record, separators=(",", ":")).encode().replace(b'"' + MARK.encode() + b'"', token)
