"""Requests whose grammar begins at a known place of a verify round, and one whose grammar ends inside a round.

A request is free until its grammar begins, so that the oracle's text and rounds tell where that is.

Moves ends of requests into a verify round, and chooses questions whose rounds accept and reject drafts.

The oracle's text tells where. Only cells in which neither happens by itself are changed, as most cells share a baseline
by their requests.

Requests that end exactly at the last position of the context, also as turns of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from specmatrix.engine.core.config.asked import Resolved
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.grammars import Grammar, grammars
from specmatrix.matrix.workloads.predicted import Prediction, deepest_round
from specmatrix.matrix.workloads.questions import questions, token_id
from specmatrix.matrix.workloads.request import Refusal, RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.registry import eos_ids

# Tokens of such a grammar, the longest marker before it, and what stands before an answer's number.
ROOM: Final = 24
MAX_MARKER: Final = 6
# Requests at once: more than the 16 tables of grammars that an engine keeps, and than any batch but waves has.
CROWD: Final = 20
# Tokens of such a request from the end of its marker on.
SHORT: Final = 8
BEFORE_NUMBER: Final = ("####", " ")
# The kinds of grammars, in the order of `ends` in grammars.yaml.
ENDS: Final = ("json", "regex", "ebnf", "tagged")


def behind(marker: Sequence[int], output: Sequence[int]) -> int | None:
    """Index of the first output token behind a marker, 0 without one; None if it does not occur."""
    size, marker, output = len(marker), tuple(marker), tuple(output)
    return next((at for at in range(size, len(output) + 1) if output[at - size : at] == marker), None)


def place_of(token: int, rounds: Sequence[int], deepest: int) -> int | None:
    """How many drafts a round accepted before an output's token, and `deepest` - 1 for the last token of any round,
    which is no draft; None for the output's first token, which belongs to no round."""
    first = 1
    for length in rounds:
        if first <= token < first + length:
            return token - first if token < first + length - 1 else deepest - 1
        first += length
    return None


def due_places(cell: Cell, shape: Resolved) -> list[int]:
    """Places of a round's tokens behind which some grammar of a cell must begin."""
    deepest = deepest_round(shape.num_steps, shape.topk, shape.num_draft_tokens)
    late = cell.grammar == "tagged" and cell.algorithm != "none"
    return [*range(_longest(shape, deepest) - 1), deepest - 1] if late else []


def _longest(shape: Resolved, deepest: int) -> int:
    """Tokens of the longest round: in suffix trees a draft and the tokens that it follows share a path."""
    return deepest if shape.suffix is None else min(deepest, shape.suffix.max_tree_depth // 2 + 1)


# A request's limit, question, and grammar with the marker before it; None for a free request.
_Asked: TypeAlias = tuple[int, int, tuple[int, ...], Grammar | None]


def within_answers(cell: Cell, shape: Resolved, indices: Sequence[int], after: tuple[str, ...]) -> list[RequestSpec]:
    """Greedy requests of these questions, sent after those named, whose grammars begin at each place of `due_places`;
    none without the oracle's rounds. Under tight memory each runs alone."""
    if oracle_of(cell.target) is None or cell.model == "llama_json":  # whose answers end with their grammar
        return []
    asked = _repeated(cell, shape, indices) if cell.shares_rounds else _predicted(cell, shape, indices)
    requests: list[RequestSpec] = []
    for place, (limit, at, marker, grammar) in enumerate(asked):
        name, prompt = f"b{place}", prompt_of(questions()[at][0])
        fields = {} if grammar is None else grammar.fields | {"reasoning_end_ids": marker}
        # Only drafts of other texts notice repetitions.
        requests.append(RequestSpec(name, prompt, limit, after=after, ours=cell.shares_rounds, **fields))
        after = after if cell.memory == "ample" and not cell.shares_rounds else (name,)
    if (cell.grammar, cell.memory, cell.sampling) == ("tagged", "ample", "mixed"):
        requests += [*_crowd(cell, (*after, *(request.name for request in requests)))]
        requests += _stuck(cell, shape, indices, after)
    return requests


def _stuck(cell: Cell, shape: Resolved, indices: Sequence[int], after: tuple[str, ...]) -> Iterator[RequestSpec]:
    """A request whose grammar begins at its answer's number, behind the first digit of which, an accepted draft, its
    bans leave no token."""
    widths, number = (shape.num_steps, shape.topk, shape.num_draft_tokens), tuple(map(token_id, BEFORE_NUMBER))
    oracle, eos, grammar = oracle_of(cell.target), eos_ids(cell.target), grammars()["ends"][ENDS.index("tagged")]
    rounds = None if oracle is None else oracle.rounds.get((cell.drafter, *widths))
    if oracle is None or rounds is None:
        return
    for at in indices:
        text = oracle.continuations[at]
        second = 1 + (behind(number, text) or len(text))
        if second < len(text) - 1 and (place_of(second, rounds[at], deepest_round(*widths)) or 0) > 0:
            begun = text[second - len(number) - 1 : second]
            bans = tuple((*begun, one) for one in (*map(token_id, "0123456789"), *sorted(eos)))
            fields = grammar.fields | {"reasoning_end_ids": number, "bad_words_ids": bans, "stuck": True, "ours": True}
            yield RequestSpec("g.stuck", prompt_of(questions()[at][0]), len(text), after=after, **fields)
            return


def _crowd(cell: Cell, after: tuple[str, ...]) -> Iterator[RequestSpec]:
    """More requests than there are tables for grammars, each with a marker of its own, so that the last ones have
    none. The first two end within their grammars, and `g0.again` goes on in the first one's, while a free one takes a
    row of theirs and one with another grammar looks for a table."""
    oracle, markers = oracle_of(cell.target), set[tuple[int, ...]]()
    for at, text in enumerate([] if oracle is None else oracle.continuations[: CROWD + 1]):
        own = ((token, marker) for token in range(2, len(text)) if (marker := _marker(text, token)) not in markers)
        token, marker = next(own)
        markers.add(marker)
        grammar = grammars()["ends"][ENDS.index("tagged")] if at == CROWD else grammars()["tagged"][1]
        how: dict[str, Any] = grammar.fields | {"reasoning_end_ids": marker}
        # Behind both the row of the first is free, whatever the timing.
        prompt, before = prompt_of(questions()[at][0]), ("g0", "g1") if at == CROWD else after
        if at == CROWD:
            yield RequestSpec("w1.0", prompt, SHORT, after=before)
        yield RequestSpec(f"g{at}", prompt, token + {0: 1, 1: 5}.get(at, SHORT), after=before, **how)
        if not at:
            yield RequestSpec("g0.again", prompt, token + 2 * SHORT, after=after, **how)


def _repeated(cell: Cell, shape: Resolved, indices: Sequence[int]) -> Iterator[_Asked]:
    """Where drafts are of earlier texts, one question again and again: all drafts are soon accepted.
    So grammars that begin behind as many tokens in a row as a round has begin at all of its places; the last ones
    first, as up to there all texts before are the same."""
    due, oracle = due_places(cell, shape), oracle_of(cell.target)
    begin = 2 if shape.suffix is None else 2 * len(due)  # its drafts grow with what they follow
    if due and oracle is not None:
        text, at = max(((oracle.continuations[at], at) for at in indices), key=lambda one: len(one[0]))
        first = next(token for token in count(begin) if all(_marker(text, token + more) for more in range(len(due))))
        yield from 2 * [(len(text), at, (), None)]
        for place in reversed(range(len(due))):
            yield first + place + ROOM, at, _marker(text, first + place), grammars()["tagged"][place % 2]


def _predicted(cell: Cell, shape: Resolved, indices: Sequence[int]) -> Iterator[_Asked]:
    """By the oracle's rounds: a request whose grammar ends at a draft, and one for each place."""
    widths = shape.num_steps, shape.topk, shape.num_draft_tokens
    oracle, eos, deepest = oracle_of(cell.target), eos_ids(cell.target), deepest_round(*widths)
    rounds = None if oracle is None else oracle.rounds.get((cell.drafter, *widths))
    if oracle is None or rounds is None:
        return
    texts = oracle.continuations
    number = tuple(map(token_id, BEFORE_NUMBER))
    size, at = min(
        (len(texts[at]), at)
        for at in indices
        if texts[at][-1] in eos
        and behind(number, texts[at])
        and place_of(len(texts[at]) - 1, rounds[at], deepest) != deepest - 1
    )
    yield size, at, number, grammars()["ends"][ENDS.index(cell.grammar)]
    used = {at}
    for place in due_places(cell, shape):
        begins = (
            (is_plain(marker, texts[at], token), token, at, marker)
            for at in {*indices} - used or {*indices}
            for token in range(2, len(texts[at]) - 1)
            if place_of(token, rounds[at], deepest) == place and (marker := _marker(texts[at], token))
        )
        _, token, at, marker = min(begins)
        used.add(at)
        yield token + ROOM, at, marker, grammars()["tagged"][place % 2]


@lru_cache(4096)
def _marker(text: tuple[int, ...], token: int) -> tuple[int, ...]:
    """The shortest run of tokens that ends at a token of the text and occurs nowhere before, if possible one that is
    not plain; () if it is long."""
    runs = (tuple(text[token + 1 - size : token + 1]) for size in range(1, min(MAX_MARKER, token) + 1))
    found = (run for run in runs if behind(run, text) == token + 1)
    return min(found, key=lambda run: is_plain(run, text, token), default=())


def is_plain(marker: Sequence[int], text: Sequence[int], token: int) -> bool:
    """Whether readers find a marker that ends at a text's token by its last token alone, or without going back to its
    beginning where it breaks off."""
    read = 0
    for one in text[: token + 1]:
        read = read + 1 if one == marker[read] else 0
    return marker[-1] not in text[:token] or read == len(marker)


# Values of the axis `finish` whose ends a request chooses.
MOVED: Final = ("length", "stop_token", "stop_string")

Predict = Callable[[RequestSpec], Prediction | None]


def with_both_rounds(
    requests: Sequence[RequestSpec], predict: Predict, others: Iterator[tuple[int, RequestSpec]]
) -> list[RequestSpec]:
    """The requests, one of them with another question if otherwise no round accepts every draft, or none rejects one.
    others: (place, request) with another question; the first with both that ends alike replaces that of its place."""
    known = [found for request in requests if (found := predict(request)) is not None]
    out = list(requests)
    if not known or (any(one.accepts_fully for one in known) and any(one.rejects for one in known)):
        return out
    for place, other in others:
        found, before = predict(other), predict(requests[place])
        alike = found is not None and (before is None or _kind(other, found) == _kind(requests[place], before))
        if alike and found is not None and found.accepts_fully and found.rejects:
            out[place] = other
            break
    return out


def with_end_inside(requests: Sequence[RequestSpec], cell: Cell, predict: Predict) -> list[RequestSpec]:
    """The requests, one of them with another limit, stop token or stop string if none of those that end by it ends
    inside a verify round, a stop string also if none begins in the round before. A limit behind the oracle's text is
    lowered too, if no other is known."""
    out = list(requests)
    if cell.finish not in MOVED:
        return out
    known = [(place, found) for place, request in enumerate(out) if (found := predict(request)) is not None]
    kinds = {_kind(out[place], found) for place, found in known}
    kind = "open" if cell.finish == "length" and "length" not in kinds else cell.finish
    ends = [(place, found) for place, found in known if _kind(out[place], found) == kind]
    whole = cell.finish != "stop_string"
    if not any(found.ends_inside for _, found in ends) or not (whole or any(found.split for _, found in ends)):
        moved = ((place, other, predict(other)) for place, found in ends for other in _moved(out[place], found, cell))
        inside = [
            (whole or found.split, place, other)
            for place, other, found in moved
            if found is not None and found.ends_inside and _kind(other, found) == cell.finish
        ]
        for _, place, other in sorted(inside, key=lambda one: not one[0])[:1]:
            out[place] = other
    return out


def _kind(request: RequestSpec, found: Prediction) -> str:
    """The value of the axis `finish` that a request's end is of, "open" behind the oracle's text."""
    stops = {"stop_token": request.stop_token_ids, "stop_string": request.stop}
    named = (kind for kind, matched in stops.items() if found.end.matched in matched)
    return next(named, "eos" if found.end.reason == "stop" else found.end.reason)


def _moved(request: RequestSpec, found: Prediction, cell: Cell) -> Iterator[RequestSpec]:
    """The request with other ends of the same kind, nearest first. A limit is only lowered. Under tight memory, which
    must retract a request, a stop is only put off."""
    if cell.finish == "length":
        yield from (replace(request, max_new_tokens=limit) for limit in range(found.end.tokens - 1, 1, -1))
        return
    oracle = oracle_of(cell.target)
    assert oracle is not None
    ids = oracle.continuation(request)
    first = found.end.tokens if cell.memory == "tight" else 1
    for last in sorted(range(first, len(ids)), key=lambda at: abs(at + 1 - found.end.tokens)):
        if cell.finish == "stop_token":
            yield replace(request, stop_token_ids=(ids[last],))
        elif stop := text_of(ids[: last + 1]).removeprefix(text_of(ids[: last - 1])).strip():
            yield replace(request, stop=(stop,))


class PriorTokens(NamedTuple):
    """Numbers of tokens in a request's prompt, including its history, and in the whole text after its last token."""

    prompt: int
    whole: int


def fill_context(requests: Sequence[RequestSpec], context: int, tokens: Callable[[str], int]) -> list[RequestSpec]:
    """The same requests, with max_new_tokens raised to fill a context of `context` tokens where no turn follows.

    In a session each is preceded by an attempt with one more token, which must be refused. No request may end before
    its limit. tokens: counts a prompt's tokens, including BOS.
    """
    followed = {one.session.follows for one in requests if one.session is not None and one.refused is None}
    priors: dict[str, PriorTokens] = {}
    out: list[RequestSpec] = []
    for request in requests:
        if request.refused is None:
            prompt = _history(request, priors) + tokens(request.prompt)
            if request.name not in followed:
                request = replace(request, max_new_tokens=context - prompt)
                if request.session is not None:
                    over = _one_more(request)
                    out.append(over)
                    request = replace(request, after=(*request.after, over.name))
            priors[request.name] = PriorTokens(prompt, prompt + request.max_new_tokens)
        out.append(request)
    return out


def _history(request: RequestSpec, priors: dict[str, PriorTokens]) -> int:
    """Number of tokens before the prompt, minus the prompt's BOS token, which is dropped after a history."""
    here = request.session
    if here is None or here.follows is None:
        return 0
    before = priors[here.follows]
    history = before.prompt if here.drop_previous_output else before.whole
    return min(here.offset or history, history) - 1


def _one_more(request: RequestSpec) -> RequestSpec:
    """The same request with one token more than the context holds."""
    return replace(
        request,
        name=f"{request.name}.over",
        max_new_tokens=request.max_new_tokens + 1,
        refused=Refusal.CONTEXT,
        closes_after=None,
        logprobs=False,
        top_logprobs=0,
    )
