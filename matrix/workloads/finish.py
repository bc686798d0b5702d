"""Derives how a request must end from its tokens alone; shares no code with the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import eos_ids

# The tokenizer's output for an incomplete UTF-8 sequence, which is not returned.
INCOMPLETE: Final = "�"
StopRule = Literal["start", "end", "list"]
# Sorts stop strings and where they start in the text; the smallest counts.
FIRST: Final[Mapping[str, Callable[[tuple[int, str]], tuple[int, ...]]]] = {
    "start": lambda hit: (hit[0], -len(hit[1])),
    "end": lambda hit: (hit[0] + len(hit[1]),),
}


class Ending(NamedTuple):
    """Finish after `tokens` tokens: reason "stop", "length" or "open" (not finished), match, and output text."""

    tokens: int
    reason: str
    matched: int | str | None
    text: str


def text_of(ids: tuple[int, ...]) -> str:
    """Decoded text, without special tokens."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=True)).rstrip(INCOMPLETE)


def banned_early(request: RequestSpec, eos: frozenset[int]) -> frozenset[int]:
    """Tokens that must not occur among the first `min_new_tokens`, EOS also if it is ignored. eos: the target's."""
    return (eos | frozenset(request.stop_token_ids)) if request.min_new_tokens else frozenset()


def ending(request: RequestSpec, ids: tuple[int, ...], target: str, rule: StopRule = "start") -> Ending:
    """The first ending among `ids`; per token a stop token precedes a stop string, which precedes the length limit.

    rule: of several stop strings that one token completes, the one counts that starts first, then the longest; or that
    ends first, then the first listed; or simply the first listed. The text includes the stop only with `no_stop_trim`.
    """
    ignored = request.ignore_eos and request.grammar is None
    stops = frozenset(request.stop_token_ids) | (frozenset() if ignored else eos_ids(target))
    for index, token in enumerate(ids):
        count = index + 1
        if token in stops:
            return Ending(count, "stop", token, text_of(ids[: count if request.no_stop_trim else index]))
        if request.stop:
            text = text_of(ids[:count])
            if hits := [(text.find(stop), stop) for stop in request.stop if stop in text]:
                start, stop = hits[0] if rule == "list" else min(hits, key=FIRST[rule])
                end = start + len(stop) if request.no_stop_trim else start
                return Ending(count, "stop", stop, text[:end])
        if count >= request.max_new_tokens:
            return Ending(count, "length", None, text_of(ids[:count]))
    return Ending(len(ids), "open", None, text_of(ids))
