"""Requests that a session must refuse, among those that it serves; a refusal must not affect other requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec

# Idle timeout of the first session in seconds, and a clock advance beyond it.
TIMEOUT: Final = 60.0
LATER: Final = TIMEOUT + 1
# Capacity of a session in characters; texts that exceed it, or every context length of the zoo.
CAPACITY: Final = 16_000
REPEATED: Final = " Then the number doubles."
PAST_CAPACITY: Final = REPEATED * (CAPACITY // len(REPEATED) + 1)
PAST_CONTEXT: Final = REPEATED * 400
REPEATED_TOKENS: Final = 8  # lower bound on the tokens of REPEATED
FAR: Final = 1_000_000  # exceeds the tokens of any history


def contended_line(turns: Sequence[RequestSpec], place: int, memory: int | None) -> list[RequestSpec]:
    """A streaming session's turns among requests that it must refuse.

    place: index of the session. Session 0 exceeds its idle timeout at its end; the same clock advance during its first
    turn must have no effect. Session 1 is closed during its third turn. memory: its size in tokens if tight, else None.
    """
    timeout = TIMEOUT if place == 0 else None
    first, second, *rest = (replace(turn, session=_limited(_session(turn), timeout)) for turn in turns)
    session = _session(first)
    busy = _attempt(first, "busy", Refusal.IN_FLIGHT, session)
    busy = replace(busy, beside=first.name, clock=LATER if place == 0 else 0.0)
    between = [replace(request, after=(first.name,)) for request in _between(first, session, memory)]
    out = [first, *([] if first.abort_after == 0 else [busy]), *between]
    out.append(replace(second, after=(*second.after, *(request.name for request in between))))
    if place == 1:
        last = replace(rest[0], closes_after=1, ignore_eos=True, stop=(), stop_token_ids=())
        return [*out, last, replace(_attempt(first, "closed", Refusal.CLOSED, session), after=(last.name,))]
    if place == 0:
        stranger = _attempt(first, "stranger", Refusal.CLOSED, Continuation("nobody", True))
        late = _attempt(first, "late", Refusal.CLOSED, session)
        rest += [stranger, replace(late, after=(rest[-1].name,), clock=LATER)]
    return [*out, *rest]


def contended_tree(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """An ordinary session's requests among invalid ones, which continue a running or replaced request or use an offset
    past the text."""
    root = requests[0]
    session = replace(_session(root), follows=root.name)
    early = replace(_attempt(root, "early", Refusal.UNFINISHED, session), beside=root.name)
    far = replace(_attempt(root, "far", Refusal.RANGE, replace(session, offset=FAR)), after=(root.name,))
    out = [root, *([] if root.abort_after == 0 else [early]), far, *requests[1:]]
    last = requests[-1]
    if _session(last).replace:
        for number, cleared in enumerate(requests[1:-1]):
            gone = replace(_session(root), follows=cleared.name)
            out.append(replace(_attempt(root, f"gone{number or ''}", Refusal.REPLACED, gone), after=(last.name,)))
    return out


def _between(first: RequestSpec, session: Continuation, memory: int | None) -> list[RequestSpec]:
    """The invalid requests between the first two turns."""
    requests = [
        _attempt(first, "offset", Refusal.OFFSET, replace(session, offset=1)),
        _attempt(first, "replace", Refusal.REPLACE, replace(session, replace=True)),
        _attempt(first, "drop", Refusal.DROP, replace(session, drop_previous_output=True)),
        _attempt(first, "long", Refusal.CONTEXT, session, PAST_CONTEXT),
        _attempt(first, "vast", Refusal.CAPACITY, session, PAST_CAPACITY),
    ]
    if memory is not None:
        requests.append(_attempt(first, "wide", Refusal.POOL, session, REPEATED * (memory // REPEATED_TOKENS)))
    return requests


def _session(turn: RequestSpec) -> Continuation:
    assert turn.session is not None
    return turn.session


def _limited(session: Continuation, timeout: float | None) -> Continuation:
    return replace(session, capacity=CAPACITY, timeout=timeout)


def _attempt(
    first: RequestSpec, kind: str, refused: Refusal, session: Continuation, text: str = REPEATED
) -> RequestSpec:
    """A request that must be refused, named after the session's first turn."""
    return RequestSpec(f"{first.name}.{kind}", text, first.max_new_tokens, refused=refused, session=session)
