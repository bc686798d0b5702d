"""What is refused of a grammar before it is compiled, within milliseconds."""

import json
import re
from time import process_time

import pytest

from specmatrix.engine.core.schedule.grammar import IGNORED, MAX_CHARACTERS, MAX_DEPTH, Constraint
from specmatrix.errors import RequestError
from tests.support.tables import table


def nested(deep: int) -> str:
    return '{"items":' * deep + "{}" + "}" * deep


CHAIN = {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(2 * MAX_DEPTH)}, "$ref": "#/$defs/0"}
REFUSED = {
    **table(__file__),
    "long": ("ebnf", "x" * (MAX_CHARACTERS + 1), "ebnf has 65537 characters; allowed: 1 to 65536"),
    "groups": ("regex", "(" * 40 + ")" * 40, "regex has 40 brackets within each other; allowed: at most 32"),
    "deep": ("json_schema", nested(32), "json_schema has 33 brackets within each other; allowed: at most 32"),
    "behind a string": (
        "json_schema",
        '{"const":"\\"' + "]" * 9000 + '","items":' + "[" * 5000 + "]" * 5000 + "}",
        "json_schema has 5001 brackets within each other; allowed: at most 32",
    ),
    "very deep": ("structural_tag", "[" * 60000, "structural_tag has 60000 brackets within each other; allowed:"),
    "chain": ("json_schema", json.dumps(CHAIN), r"json_schema has more than 32 references in a line at .*"),
    **{
        word: ("json_schema", f'{{"{word}":{{}}}}', re.escape(f"json_schema has {word!r}; allowed: keywords"))
        for word in sorted(IGNORED)
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_grammar_that_is_too_large_or_recursive_is_refused_at_once(name):
    kind, text, message = REFUSED[name]
    began = process_time()
    with pytest.raises(RequestError) as refusal:
        Constraint(kind, text).check()
    assert re.match(message, str(refusal.value)), refusal.value
    assert process_time() - began < 0.1


DOUBLING = {"$defs": {str(n): {"items": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(20)} | {"20": {}}}


DEEP = {"$defs": {str(n): json.loads("[" * 25 + f'{{"$ref":"#/$defs/{n + 1}"}}' + "]" * 25) for n in range(30)}}
SPELLINGS = {"a": [[]] * 10000, "b": [{"$ref": "#/a/" + "0" * n} for n in range(1, 200)]}


@pytest.mark.parametrize(
    "text",
    [
        nested(31),
        json.dumps({"pattern": "(" * 40}),
        json.dumps({"$ref": "#/$defs/0", **DEEP, "$defs": DEEP["$defs"] | {"30": {}}}),
        json.dumps(SPELLINGS, separators=(",", ":")),
        "true",
        '{"$defs":{"a/b":{"type":"null"}},"items":[{"$ref":"#/$defs/a~1b"},{"$ref":"#/$defs/a~1b"}]}',
        json.dumps({**DOUBLING, "$ref": "#/$defs/0"}),
        '{"items":[{"type":"null"},{"$ref":"#/items/0"}]}',
        '{"enum":[{"$ref":"#"}],"const":{"$ref":"nowhere"},"default":{"$ref":1},"properties":{"const":{"enum":[1]},"not":{"const":{"if":1}}}}',
    ],
    ids=[
        "deepest",
        "brackets in a string",
        "lists between references",
        "spellings",
        "anything",
        "twice",
        "doubling",
        "item",
        "references in data",
    ],
)
def test_a_schema_within_the_limits_passes(text):
    began = process_time()
    Constraint("json_schema", text).check()
    assert process_time() - began < 0.1
