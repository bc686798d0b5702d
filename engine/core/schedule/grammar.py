"""A request's grammar, its limits, and how a grammar changed a token.

SGLang's kinds: a JSON schema, a regular expression, an EBNF grammar whose first rule is `root`, and xgrammar's
structural tags (https://xgrammar.mlc.ai/docs/), each as a text. A grammar is compiled in a process with limits on time
and memory; what is checked here is refused within milliseconds.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from specmatrix.errors import RequestError, shown, text_of

KINDS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
MAX_CHARACTERS: Final = 65536
MAX_DEPTH: Final = 32
STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
# Where a structural tag has schemas, in xgrammar's form and in SGLang's older one with `structures`.
SCHEMAS: Final = ("json_schema", "schema")
# Keywords of a schema whose values are schemas by name, and those whose values are data.
BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
DATA: Final = ("const", "enum", "default", "examples")
# Keywords that xgrammar does not enforce.
IGNORED: Final = {"not", "if", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"}
# What the rules and the grammar left of a token's distribution: nothing, its most likely token, or only others.
NOTHING, KEPT, CHANGED = range(3)
# What an error matched that the request itself asked for.
UNSATISFIABLE: Final = "grammar"
NO_TOKEN_LEFT: Final = (
    "no token is legal after {count} tokens of output: the grammar allows none of the vocabulary, only tokens that the "
    "request bans, or is so ambiguous that its masks take too long; the tokens so far are exact"
)


class Constraint(NamedTuple):
    """A grammar. kind: one of KINDS."""

    kind: str
    text: str

    def check(self) -> None:
        """Raise RequestError for a text that is too large, too deep, no JSON, or a recursive schema."""
        kind, text = self
        if not 0 < len(text) <= MAX_CHARACTERS:
            raise RequestError(f"{kind} has {len(text)} characters; allowed: 1 to {MAX_CHARACTERS}")
        # Of JSON without its strings; those quoted or escaped in other kinds count.
        shape = text if kind in ("regex", "ebnf") else STRINGS.sub("", text)
        steps = ((letter in "([{") - (letter in ")]}") for letter in shape)
        if (deep := max(accumulate(steps, initial=0))) > MAX_DEPTH:
            raise RequestError(f"{kind} has {deep} brackets within each other; allowed: at most {MAX_DEPTH}")
        if kind in ("regex", "ebnf"):
            return
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise RequestError(f"{kind} is {shown(text)}; allowed: JSON ({text_of(error)})") from None
        if not isinstance(schema, dict | bool) or (kind == "structural_tag" and isinstance(schema, bool)):
            raise RequestError(f"{kind} is {shown(text)}; allowed: a JSON object")
        for each in [schema] if kind == "json_schema" else _schemas_of(schema):
            _check_recursion(each)


def _schemas_of(tag: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """The schemas in a structural tag."""
    parts = tag.items() if isinstance(tag, dict) else enumerate(tag) if isinstance(tag, list) else ()
    found = ([inner] if name in SCHEMAS else _schemas_of(inner) for name, inner in parts)
    return [*chain.from_iterable(found)]


def _parts(schema: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """What stands directly within a schema or a list of schemas, without data."""
    if isinstance(schema, list):
        return schema
    named = [inner for name in BY_NAME if isinstance(inner := schema.get(name), dict)]
    others = [inner for name, inner in schema.items() if name not in DATA and not any(inner is one for one in named)]
    return others + [inner for one in named for inner in one.values()]


def _check_recursion(schema: Any) -> None:  # noqa: ANN401 - JSON
    """Raise RequestError if a `$ref` of a schema leads back to a schema that contains it, or to nothing."""
    around, done = set[int](), set[int]()  # what contains or refers to the part at hand, and what is checked
    pending = [(schema, 0, False)]
    while pending:
        part, refs, leaving = pending.pop()
        if leaving:
            around.discard(id(part))
            done.add(id(part))
        if not isinstance(part, dict | list) or id(part) in done:
            continue
        if ignored := sorted(IGNORED & {*part} if isinstance(part, dict) else ()):
            raise RequestError(f"json_schema has {shown(ignored[0])}; allowed: keywords that xgrammar enforces")
        around.add(id(part))
        pending.append((part, refs, True))
        pending += [(inner, refs, False) for inner in _parts(part)]
        ref = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(ref, str):
            target = _target(schema, ref)
            if id(target) in around or refs >= MAX_DEPTH:
                what = "is recursive" if id(target) in around else f"has more than {MAX_DEPTH} references in a line"
                raise RequestError(f"json_schema {what} at $ref {shown(ref)}; allowed: schemas of limited depth")
            pending.append((target, refs + 1, False))


def _target(schema: Any, ref: str) -> object:  # noqa: ANN401 - JSON
    """The schema that a reference names. RequestError if there is none."""
    found: Any = {"#": schema}
    try:
        for part in ref.split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (LookupError, ValueError, TypeError):
        raise RequestError(f"json_schema has the $ref {shown(ref)}; allowed: a path in the schema, from #/") from None
    return found
