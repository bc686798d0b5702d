"""Requests that differ in what they ask for, one after the other on the same rows and beside one another.

Two run at a time, with both completions of some: a long one, and short ones that follow each other on its neighbours'
rows. Which features a request has is a table that covers every pair of features, on and off, of a long request and a
short one beside it, and of a short request and the next one on its row; and of each feature every three values of
neighbour, predecessor and newcomer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.workloads.request import RequestSpec

# For each long request which features of `ASKED` it has, and those of the short ones beside it, in order.
KINDS: Final = (
    ("111100", ("000100", "001000", "011100", "111100")),
    ("010100", ("100100", "010100", "110000", "000000")),
    ("001000", ("111100", "110100", "000000", "001100")),
    ("100000", ("101000", "010000", "111000", "111000")),
    ("100110", ("101011", "000000", "010000", "101111", "111111")),
    ("011001", ("010101", "101100", "110110", "111011", "100101")),
)
LONG: Final = 44
SHORT: Final = 10
MORE: Final = 3  # alternatives of a long one, where short ones ask for two
ASKED: Final[dict[str, dict[str, Any]]] = {
    "ruled": {"repetition_penalty": 0.8, "presence_penalty": -0.5, "logit_bias": ((24, 1.5),)},
    "sampled": {"temperature": 0.9},
    "scored": {"top_logprobs": 2},
    "stopped": {"stop": ("<<",)},
    "unseeded": {"seed": None},
    "several": {"n": 2},
}


def alternating(ask: Callable[[int, int, int], RequestSpec], after: Sequence[str]) -> list[RequestSpec]:
    """The requests of `KINDS`, once those named have ended. ask(line, place, limit): a plain greedy request, at place 0
    a line's long one."""
    out, long, last = list[RequestSpec](), tuple(after), tuple(after)
    for line, (kind, others) in enumerate(KINDS):
        first = _of(kind, ask(line, 0, LONG), long)
        first = replace(first, top_logprobs=first.top_logprobs and MORE)
        out.append(first)
        for place, other in enumerate(others, 1):
            # Sent with the long one, so that it is the younger.
            out.append(_of(other, ask(line, place, SHORT), dict.fromkeys((*last, *(long if place == 1 else ())))))
            last = (out[-1].name,)
        long = (first.name,)
    return out


def _of(kind: str, request: RequestSpec, after: Sequence[str] | dict[str, None]) -> RequestSpec:
    asked = [values for (_, values), bit in zip(ASKED.items(), kind, strict=True) if bit == "1"]
    return replace(request, after=tuple(after), **{name: value for values in asked for name, value in values.items()})
