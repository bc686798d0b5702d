"""Requests that differ in what they ask for, one after the other on the same rows and beside one another.

Two run at a time, with both completions of some: a long one, and during it short ones that follow each other on its
neighbours' rows. Which features a request has is a table that covers every pair of features, on and off, of a long
request and a short one beside it, and of a short request and the next one on its row; and of each feature every three
values of neighbour, predecessor and newcomer. Turns are those of two streaming sessions, of the long ones and of the
short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.workloads.request import Continuation, RequestSpec

# For each long request which features of `ASKED` it has, and those of the short ones beside it, in order.
KINDS: Final = (
    ("1111000", ("0001000", "0010001", "0111000", "1111001")),
    ("0101000", ("1001000", "0101000", "1100000", "0000000")),
    ("0010001", ("1111000", "1101001", "0000000", "0011001")),
    ("1000001", ("1010001", "0110001", "1110000", "1110000")),
    ("1001101", ("1010110", "0000001", "0100001", "1011110", "1111110")),
    ("0110010", ("0101010", "1011001", "1101101", "1110110", "1001010")),
)
LONG: Final = 18  # tokens of a long one for each short one beside it, whose steps it outlives
UNREACHED: Final = ("<<<",)
SHORT: Final = 10
MORE: Final = 3  # alternatives of a long one, where short ones ask for two
ASKED: Final[dict[str, dict[str, Any]]] = {
    "ruled": {"repetition_penalty": 0.8, "presence_penalty": -0.5, "logit_bias": ((24, 1.5),)},
    "sampled": {"temperature": 0.9},
    "scored": {"top_logprobs": 2},
    "stopped": {"stop": ("<<",)},
    "unseeded": {"seed": None},
    "several": {"n": 2},
    "turn": {},
}


def alternating(ask: Callable[[int, int, int], RequestSpec], after: Sequence[str], sessions: bool) -> list[RequestSpec]:
    """The requests of `KINDS`, once those named have ended. ask(line, place, limit): a plain greedy request, at place 0
    a line's long one. sessions: turns are turns of sessions."""
    out, last = list[RequestSpec](), tuple(after)
    turns: dict[str, str] = {}  # the last one of each session

    def of(kind: str, request: RequestSpec, after: Sequence[str], session: str) -> RequestSpec:
        asked = {name: values for (name, values), bit in zip(ASKED.items(), kind, strict=True) if bit == "1"}
        if sessions and "turn" in asked:
            request = replace(request, session=Continuation(session, True, turns.get(session)))
            turns[session] = request.name
        return replace(
            request, after=tuple(dict.fromkeys(after)), **{k: v for one in asked.values() for k, v in one.items()}
        )

    for line, (kind, others) in enumerate(KINDS):
        first = of(kind, ask(line, 0, LONG * len(others)), last, "long")
        # A stop that its text does not reach, as it outlives the short ones.
        out.append(replace(first, top_logprobs=first.top_logprobs and MORE, stop=first.stop and UNREACHED))
        for place, other in enumerate(others, 1):
            # Sent behind the long one, so that it is the younger.
            out.append(of(other, ask(line, place, SHORT), last, "short"))
            last = (*([first.name] if place == len(others) else []), out[-1].name)
    return out
