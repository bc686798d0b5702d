"""What a request's grammar allows, by a fresh matcher for each row, and whether an independent parser reads an answer.
Shares no code with the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from specmatrix.extras import require
from specmatrix.matrix.workloads.boundaries import behind
from specmatrix.matrix.workloads.grammars import grammar_of
from specmatrix.matrix.workloads.questions import DATA
from specmatrix.matrix.workloads.request import RequestSpec

if TYPE_CHECKING:
    import numpy


def following(request: RequestSpec, output: tuple[int, ...], eos: frozenset[int]) -> numpy.ndarray:
    """The tokens that may follow an output of the request: bool [V]; none if the grammar refuses the output, all while
    it reasons. eos: the target's."""
    import numpy as np
    import torch
    import xgrammar

    size = _compiler(eos)[1]
    first = behind(request.reasoning_end_ids, output)
    if first is None:
        return np.ones(size, bool)
    assert request.grammar is not None
    matcher = xgrammar.GrammarMatcher(compiled(eos, *request.grammar))
    if not all(not matcher.is_terminated() and matcher.accept_token(token) for token in output[first:]):
        return np.zeros(size, bool)
    if matcher.is_terminated():
        return np.zeros(size, bool)
    row = torch.full((1, -(-size // 32)), -1, dtype=torch.int32)
    matcher.fill_next_token_bitmask(row)
    allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[:size].astype(bool)
    allowed[0] = False  # a special token, whose text a grammar may contain
    return allowed


def followed(resolved: Mapping[str, Any], request: RequestSpec) -> tuple[str, str] | None:
    """The grammar that a request's drafts follow, as its kind and text; None if they are free."""
    if request.grammar is None or not resolved.get("speculative_constrained_drafts"):
        return None
    return request.grammar if grammar_of(*request.grammar).table else None


@cache
def _compiler(eos: frozenset[int]) -> tuple[Any, int]:
    """xgrammar's compiler for the zoo's tokenizer, and the size of its vocabulary."""
    require("xgrammar")
    import xgrammar
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast  # untyped
    tokenizer = fast(tokenizer_file=str(DATA / "tokenizer.json"))
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=sorted(eos))
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False), info.vocab_size


@cache
def compiled(eos: frozenset[int], kind: str, text: str) -> Any:  # noqa: ANN401 - xgrammar has no types
    """xgrammar's form of a grammar."""
    names = {"json_schema": "compile_json_schema", "regex": "compile_regex", "ebnf": "compile_grammar"}
    return getattr(_compiler(eos)[0], names.get(kind, "compile_structural_tag"))(text)


def unreadable(request: RequestSpec, text: str) -> str:
    """Why an independent parser cannot read a constrained text; "" if it can. KeyError on a grammar of no axis
    value."""
    assert request.grammar is not None
    kind, source = request.grammar
    grammar = grammar_of(kind, source)
    if kind == "json_schema":
        return _not_of_schema(source, text)
    if grammar.lark is not None:
        return _not_of_lark(grammar.lark, text)
    pattern = source if kind == "regex" else grammar.pattern or ""
    return "" if re.fullmatch(pattern, text) else f"{text!r} does not match {pattern!r}"


def _not_of_schema(schema: str, text: str) -> str:
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), json.loads(schema))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r} is not of the schema: {str(error).splitlines()[0]}"
    return ""


def _not_of_lark(grammar: str, text: str) -> str:
    import lark

    try:
        _parser(grammar).parse(text)
    except lark.exceptions.UnexpectedInput as error:
        return f"{text!r} is not of the grammar: {str(error).splitlines()[0]}"
    return ""


@cache
def _parser(grammar: str) -> Any:  # noqa: ANN401 - only tests and this gate need lark
    import lark

    return lark.Lark(grammar, parser="earley", lexer="dynamic")
