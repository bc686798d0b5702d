"""Requests that a session must refuse, beside those that it serves: each is refused alone, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.subjects.protocol import Ask, Continuation, Refusal

# Seconds that the first session may be idle, and a step of the clock beyond them.
TIMEOUT: Final = 60.0
LATER: Final = TIMEOUT + 1
# Characters of text that a session may hold; texts that do not fit it, or any context of the zoo.
CAPACITY: Final = 16_000
REPEATED: Final = " Then the number doubles."
PAST_CAPACITY: Final = REPEATED * (CAPACITY // len(REPEATED) + 1)
PAST_CONTEXT: Final = REPEATED * 400
REPEATED_TOKENS: Final = 8  # REPEATED has more
FAR: Final = 1_000_000  # more tokens than any history


def contended_line(turns: Sequence[Ask], place: int, memory: int | None) -> list[Ask]:
    """A streaming session's turns among requests that it must refuse, ended by the clock or while it decodes.

    place: of the session among the others. The first one is idle for too long at its end, and the clock makes the same
    step while its first turn runs, which must not matter. The second is closed while its third turn runs.
    memory: positions, where tight.
    """
    timeout = TIMEOUT if place == 0 else None
    first, second, *rest = (replace(turn, session=_limited(_session(turn), timeout)) for turn in turns)
    session = _session(first)
    busy = _attempt(first, "busy", Refusal.IN_FLIGHT, session)
    busy = replace(busy, beside=first.name, clock=LATER if place == 0 else 0.0)
    between = [replace(ask, after=(first.name,)) for ask in _between(first, session, memory)]
    out = [first, *([] if first.abort_after == 0 else [busy]), *between]
    out.append(replace(second, after=(*second.after, *(ask.name for ask in between))))
    if place == 1:
        last = replace(rest[0], closes_after=1, ignore_eos=True, stop=(), stop_token_ids=())
        return [*out, last, replace(_attempt(first, "closed", Refusal.CLOSED, session), after=(last.name,))]
    if place == 0:
        stranger = _attempt(first, "stranger", Refusal.CLOSED, Continuation("nobody", True))
        late = _attempt(first, "late", Refusal.CLOSED, session)
        rest += [stranger, replace(late, after=(rest[-1].name,), clock=LATER)]
    return [*out, *rest]


def contended_tree(asks: Sequence[Ask]) -> list[Ask]:
    """An ordinary session's requests among some that continue a request which still runs or was replaced, or go back
    further than there is text."""
    root = asks[0]
    session = replace(_session(root), follows=root.name)
    early = replace(_attempt(root, "early", Refusal.UNFINISHED, session), beside=root.name)
    far = replace(_attempt(root, "far", Refusal.RANGE, replace(session, offset=FAR)), after=(root.name,))
    out = [root, *([] if root.abort_after == 0 else [early]), far, *asks[1:]]
    last = asks[-1]
    if _session(last).replace:
        gone = replace(_session(root), follows=asks[1].name)
        out.append(replace(_attempt(root, "gone", Refusal.REPLACED, gone), after=(last.name,)))
    return out


def _between(first: Ask, session: Continuation, memory: int | None) -> list[Ask]:
    """What is tried between the first two turns."""
    asks = [
        _attempt(first, "offset", Refusal.OFFSET, replace(session, offset=1)),
        _attempt(first, "replace", Refusal.REPLACE, replace(session, replace=True)),
        _attempt(first, "drop", Refusal.DROP, replace(session, drop_previous_output=True)),
        _attempt(first, "long", Refusal.CONTEXT, session, PAST_CONTEXT),
        _attempt(first, "vast", Refusal.CAPACITY, session, PAST_CAPACITY),
    ]
    if memory is not None:
        asks.append(_attempt(first, "wide", Refusal.POOL, session, REPEATED * (memory // REPEATED_TOKENS)))
    return asks


def _session(turn: Ask) -> Continuation:
    assert turn.session is not None
    return turn.session


def _limited(session: Continuation, timeout: float | None) -> Continuation:
    return replace(session, capacity=CAPACITY, timeout=timeout)


def _attempt(first: Ask, kind: str, refused: Refusal, session: Continuation, text: str = REPEATED) -> Ask:
    """A request that must be refused, named after the session's first turn."""
    return Ask(f"{first.name}.{kind}", text, first.max_new_tokens, refused=refused, session=session)
