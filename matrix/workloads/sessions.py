"""Workloads of dependent requests: turns of sessions, requests that a session must refuse, sessions that compete for
memory, and batches that grow and shrink in waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from specmatrix.matrix.cells.cell import SessionRetract
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec

# Idle timeout of the first session in seconds, and clock advances short of it and beyond it.
TIMEOUT: Final = 60.0
EARLIEST, LATER = TIMEOUT - 1, TIMEOUT + 1
# Capacity of a session in characters; texts that exceed it, or every context length of the zoo.
CAPACITY: Final = 16_000
REPEATED: Final = " Then the number doubles."
PAST_CAPACITY: Final = REPEATED * (CAPACITY // len(REPEATED) + 1)
PAST_CONTEXT: Final = REPEATED * 400
REPEATED_TOKENS: Final = 8  # lower bound on the tokens of REPEATED
FAR: Final = 1_000_000  # exceeds the tokens of any history


def contended_line(turns: Sequence[RequestSpec], place: int, memory: int | None) -> list[RequestSpec]:
    """A streaming session's turns among requests that it must refuse.

    place: index of the session. Session 0 exceeds its idle timeout at its end, and is open just before; the same clock
    advance during its first turn must have no effect. Session 1 is closed during its third turn. memory: its size in
    tokens if tight, else None.
    """
    limits: dict[str, Any] = {"capacity": CAPACITY, "timeout": TIMEOUT if place == 0 else None}
    first, second, *rest = (replace(turn, session=replace(_session(turn), **limits)) for turn in turns)
    session = _session(first)
    busy = _attempt(first, "busy", Refusal.IN_FLIGHT, session)
    busy = replace(busy, beside=first.name, clock=LATER if place == 0 else 0.0)
    between = [replace(request, after=(first.name,)) for request in _between(first, session, memory)]
    out = [first, *([] if first.abort_after == 0 else [busy]), *between]
    out.append(replace(second, after=(*second.after, *(request.name for request in between))))
    if second.abort_after != 0:
        out.append(replace(_attempt(first, "later", Refusal.IN_FLIGHT, session), beside=second.name))
    if place == 1:
        last = replace(rest[0], closes_after=1, ignore_eos=True, stop=(), stop_token_ids=())
        return [*out, last, replace(_attempt(first, "closed", Refusal.CLOSED, session), after=(last.name,))]
    if place == 0:
        stranger = _attempt(first, "stranger", Refusal.CLOSED, Continuation("nobody", True))
        idle = _attempt(first, "idle", Refusal.OFFSET, replace(session, offset=1))
        late = _attempt(first, "late", Refusal.CLOSED, session)
        idle = replace(idle, after=(rest[-1].name,), clock=EARLIEST, ours=True)
        rest += [stranger, idle, replace(late, after=idle.after, clock=LATER)]
    return [*out, *rest]


def contended_tree(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """An ordinary session's requests among invalid ones, which continue a running or replaced request or use an offset
    past the text."""
    root = requests[0]
    session = replace(_session(root), follows=root.name)
    early = replace(_attempt(root, "early", Refusal.UNFINISHED, session), beside=root.name)
    far = replace(_attempt(root, "far", Refusal.RANGE, replace(session, offset=FAR)), after=(root.name,))
    out = [root, *([] if root.abort_after == 0 else [early]), far, *requests[1:]]
    for last in [one for one in requests if _session(one).replace]:
        for number, cleared in enumerate(one for one in requests[1:] if one is not last):
            session = replace(_session(root), follows=cleared.name)
            gone = _attempt(root, f"gone{number or ''}", Refusal.REPLACED, session)
            out.append(replace(gone, after=(last.name,), ours=cleared.ours))
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


def _attempt(
    first: RequestSpec, kind: str, refused: Refusal, session: Continuation, text: str = REPEATED
) -> RequestSpec:
    """A request that must be refused, named after the session's first turn."""
    return RequestSpec(f"{first.name}.{kind}", text, first.max_new_tokens, refused=refused, session=session)


# Number of requests in each wave.
WAVES: Final = (1, 8, 32, 8, 1)
# What the engine renews before each wave.
RENEWALS: Final = {3: "weights", 4: "memory"}
# In a larger batch every third request stays outside the sessions.
PLAIN_EVERY: Final = 3
# Prompts after the first turn, and their max_new_tokens: ending within a round, at its end, and one token.
REPLIES: Final = (" Then the number doubles.", "\n#### Why?")
REPLY_LIMITS: Final = (23, 16, 1)
# In the smallest memory a whole conversation must fit where a single request does; the turns after the first take at
# most this many tokens.
TIGHT_LATER: Final = 55
TIGHT_REPLY_LIMITS: Final = (11, 8, 1)
OFFSET: Final = 21
# Turns rotate between no logprobs, logprobs of their tokens, and this many top_logprobs.
ALTERNATIVES: Final = 3
ABORTED_TURN: Final = 3  # tokens after which a turn is aborted


def in_waves(sizes: Sequence[int], make: Callable[[int, int], RequestSpec]) -> list[RequestSpec]:
    """Waves of requests, each sent once the previous wave has ended. make(wave, place) creates a request."""
    requests: list[RequestSpec] = []
    before: tuple[str, ...] = ()
    for wave, size in enumerate(sizes):
        now = [replace(make(wave, place), after=before) for place in range(size)]
        before = tuple(request.name for request in now)
        requests += now
    return requests


def conversations(
    requests: Sequence[RequestSpec], streaming: bool, memory: int | None, short: bool, aborts: bool
) -> list[RequestSpec]:
    """A session for each request, except some in a larger batch, with the request as its first turn, then others.

    memory: its size in tokens if tight, else None. short: few tokens per turn. aborts: abort the second turn of the
    first session and the first turn of the second. Where a request is aborted in the queue, so is the second turn of
    the first streaming session.
    """
    out: list[RequestSpec] = []
    queued = len(requests) > 1 and any(request.abort_after == 0 for request in requests)
    for place, request in enumerate(requests):
        if len(requests) > PLAIN_EVERY and place % PLAIN_EVERY == PLAIN_EVERY - 1:
            out.append(request)
            continue
        first = request
        if aborts:
            first = _cut(first) if place == 1 else replace(first, abort_after=None)
        broken = aborts and place == 0
        limits = TIGHT_REPLY_LIMITS if short else REPLY_LIMITS
        if streaming:
            cut = ABORTED_TURN if broken else 0 if queued and place == 0 else None
            turns = line(first, place, limits, cut)
            out += contended_line(scored(turns, place), place, memory)
        else:
            out += contended_tree(scored(_branches(first, place, limits, broken), place))
    return out


def line(first: RequestSpec, place: int, limits: Sequence[int], cut: int | None) -> list[RequestSpec]:
    """A streaming session: a sequence of turns. cut: number of tokens after which the second turn is aborted, so that
    the third follows the first."""
    name = f"s{place}"
    turns = [replace(first, session=Continuation(name, True))]
    good = None if first.abort_after is not None else first.name
    for number, limit in enumerate(limits, start=2):
        request = _reply(first, number, limit)
        turn = replace(request, after=(turns[-1].name,), session=Continuation(name, True, good))
        if good is None:
            # After an aborted first turn, this turn starts the conversation.
            turn = replace(turn, prompt=first.prompt)
        if cut is not None and number == 2:
            turn = _cut(turn, cut)
        else:
            good = turn.name
        turns.append(turn)
    return turns


def _branches(first: RequestSpec, place: int, limits: Sequence[int], broken: bool) -> list[RequestSpec]:
    """An ordinary session: two requests continue the first, one of them without its output, and two more one of these
    with and without its; a last one branches off inside the first and replaces all four. broken: the second is
    aborted, so that only one continues these, which still runs when it is replaced."""
    name = f"b{place}"
    root = replace(first, session=Continuation(name, False))
    two, three, four = (_reply(first, number, limit) for number, limit in enumerate(limits, start=2))
    five = _reply(first, 5, limits[0 if broken else -1])
    after = (first.name,)
    if first.abort_after is not None:
        # No request continues an aborted one, whose tokens depend on timing.
        beginnings = [replace(request, prompt=first.prompt, after=after) for request in (two, three)]
        return [root, *(replace(request, session=Continuation(name, False)) for request in beginnings)]
    second = replace(two, after=after, session=Continuation(name, False, first.name))
    bare = Continuation(name, False, first.name, drop_previous_output=True)
    third = replace(three, after=after, session=bare)
    if broken:
        second = _cut(second)
    back = Continuation(name, False, first.name, offset=OFFSET, replace=True)
    fourth = replace(five, after=(two.name,), session=Continuation(name, False, two.name))
    bare = Continuation(name, False, two.name, drop_previous_output=True)
    sixth = replace(_reply(first, 6, 1), after=(two.name,), session=bare, ours=True)
    last = replace(four, after=(two.name, three.name, five.name, sixth.name), session=back)
    if broken:
        endless = replace(_cut(five), abort_after=None, replaced=True)
        fourth = replace(endless, after=(two.name, three.name), session=Continuation(name, False, three.name))
        last = replace(last, after=(), beside=five.name)
    return [root, second, third, fourth, last, *([] if broken else [sixth])]


def scored(turns: Sequence[RequestSpec], place: int) -> list[RequestSpec]:
    """The turns of a session with rotating logprob settings."""
    modes = ((False, 0), (True, 0), (True, ALTERNATIVES))
    asked = [modes[(place + number) % len(modes)] for number in range(len(turns))]
    return [replace(turn, logprobs=own, top_logprobs=top) for turn, (own, top) in zip(turns, asked, strict=True)]


def _cut(request: RequestSpec, after: int = ABORTED_TURN) -> RequestSpec:
    """A request that is always aborted, as nothing else can end it earlier."""
    return replace(request, abort_after=after, ignore_eos=True, stop=(), stop_token_ids=())


def _reply(first: RequestSpec, number: int, limit: int) -> RequestSpec:
    """A later request of a session: short, with the first one's sampling parameters and stop conditions."""
    return replace(
        first,
        name=f"{first.name}.turn{number}",
        prompt=REPLIES[number % len(REPLIES)],
        max_new_tokens=limit,
        seed=(first.seed or 0) + 100 * number,
        abort_after=None,
        answer=None,
    )


# max_new_tokens of the turns after the second.
LAST_LIMITS: Final = (8, 1)
# An aborted second turn has MORE tokens left to its limit, and is aborted EARLIER tokens before the other turn's
# length, after it has resumed.
MORE: Final = 10
EARLIER: Final = 2


def collisions(
    requests: Sequence[RequestSpec], room: SessionRetract, tokens: Callable[[str], int], aborts: bool
) -> list[RequestSpec]:
    """The turns of a session for each request. First turns end at the same length; second turns start when all first
    turns have ended.

    tokens: counts a prompt's tokens. aborts: the second turn of the second session is aborted after its retraction.
    """
    said = room.second - room.first - tokens(REPLIES[0])
    out: list[RequestSpec] = []
    for place, request in enumerate(requests):
        queued = 0 if request.abort_after == 0 else None  # aborted in the queue, so independent of memory
        first = replace(request, max_new_tokens=room.first - 1 - tokens(request.prompt), abort_after=queued)
        late = aborts and place == 1
        limits = (said + MORE if late else said, *LAST_LIMITS)
        turns = line(first, place, limits, said - EARLIER if late else None)
        out += contended_line(scored(turns, place), place, room.memory)
    # Sent together, they are ordered by index: the last one is the youngest and is retracted.
    before = dict.fromkeys(name for request in out if _second(request) for name in request.after)
    return [replace(request, after=tuple(before)) if _second(request) else request for request in out]


def _second(request: RequestSpec) -> bool:
    return request.name.endswith(".turn2")
