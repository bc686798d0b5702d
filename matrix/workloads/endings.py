"""Moves ends of requests into a verify round, and chooses questions whose rounds accept and reject drafts.

The oracle's text tells where. Only cells in which neither happens by itself are changed, as most cells share a baseline
by their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.predicted import Prediction
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of

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
    inside a verify round, a stop string also if none begins in the round before."""
    out = list(requests)
    if cell.finish not in MOVED:
        return out
    known = [(place, found) for place, request in enumerate(out) if (found := predict(request)) is not None]
    ends = [(place, found) for place, found in known if _kind(out[place], found) == cell.finish]
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
