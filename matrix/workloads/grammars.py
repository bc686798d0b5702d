"""The grammars of a cell's requests, and the independent parser of each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import GRAMMARS, RequestSpec

FILE: Final = Path(__file__).with_name("grammars.yaml")
# The place of the request in each five that has no grammar.
FREE: Final = 2
FIVE: Final = 5
# The place whose grammar may begin late, and the text that it begins behind.
THINKS: Final = 3
THOUGHT: Final = ">>"
BLANKS: Final = "\t\n\r "


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grammar of grammars.yaml, which explains its fields."""

    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    lark: str | None = None
    pattern: str | None = None
    reasoning_end: str = ""
    blanks: bool = False
    table: bool = True

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields of a request."""
        return {kind: text for kind in GRAMMARS if (text := getattr(self, kind)) is not None}


@cache
def grammars() -> dict[str, list[Grammar]]:
    """The grammars by axis value."""
    return msgspec.yaml.decode(FILE.read_bytes(), type=dict[str, list[Grammar]])


@cache
def grammar_of(kind: str, text: str) -> Grammar:
    """The grammar with this text. KeyError if no axis value has it."""
    known = {one for each in grammars().values() for one in each}
    return {pair: one for one in known for pair in one.fields.items()}[kind, text]


def constrained(request: RequestSpec, value: str, place: int, thinks: bool = False) -> RequestSpec:
    """The request with the grammar of its place among those of an axis value; some places have none, so that batches
    mix constrained with free requests. thinks: one place's grammar begins behind a part of an answer as the target
    writes it, so that drafts are accepted that a grammar's whole text would not have."""
    if place % FIVE == FREE:
        return request
    given = grammars()[value]
    one = given[place % len(given)]
    banned = tuple((token,) for token in _ids(BLANKS)) if one.blanks else ()
    end = THOUGHT if thinks and place % FIVE == THINKS else one.reasoning_end
    return replace(request, **one.fields, reasoning_end_ids=_ids(end), bad_words_ids=banned)


@cache
def _ids(text: str) -> tuple[int, ...]:
    """The tokens of a text; of `BLANKS` those of each character."""
    parts = [*text] if text == BLANKS else [text]
    return tuple(token for part in parts for token in tokenizer().encode(part, add_special_tokens=False).ids)
