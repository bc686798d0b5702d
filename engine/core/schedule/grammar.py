"""A request's grammar, its limits, and how a grammar changed a token.

SGLang's kinds: a JSON schema, a regular expression, an EBNF grammar whose first rule is `root`, and xgrammar's
structural tags (https://xgrammar.mlc.ai/docs/), each as a text. A grammar is compiled in a process with limits on time
and memory; what is checked here is refused within milliseconds.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final, NamedTuple

from specmatrix.errors import RequestError, shown, text_of

KINDS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
MAX_CHARACTERS: Final = 65536
MAX_DEPTH: Final = 32
STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
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
        if kind == "json_schema":
            _check_recursion(schema)


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
        around.add(id(part))
        pending.append((part, refs, True))
        pending += [(inner, refs, False) for inner in (part.values() if isinstance(part, dict) else part)]
        ref = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(ref, str):
            target = _target(schema, ref)
            if id(target) in around or refs >= MAX_DEPTH:
                what = "is recursive" if id(target) in around else f"has more than {MAX_DEPTH} references in a line"
                raise RequestError(f"json_schema {what} at $ref {shown(ref)}; allowed: schemas of limited depth")
            pending.append((target, refs + 1, False))


def _target(schema: Any, ref: str) -> object:  # noqa: ANN401 - JSON
    """The schema that a reference names. RequestError if there is none."""
    found = schema
    parts = ref.split("/")
    try:
        if parts[0] != "#":
            raise KeyError(ref)
        for part in parts[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (LookupError, ValueError, TypeError):
        raise RequestError(f"json_schema has the $ref {shown(ref)}; allowed: a path in the schema, from #/") from None
    return found
