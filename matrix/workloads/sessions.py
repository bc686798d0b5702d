"""Workloads of dependent requests: turns of sessions, and batches that grow and shrink in waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.workloads.refusals import contended_line, contended_tree
from specmatrix.matrix.workloads.request import Continuation, RequestSpec

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
    first session and the first turn of the second.
    """
    out: list[RequestSpec] = []
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
            turns = line(first, place, limits, ABORTED_TURN if broken else None)
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
    """An ordinary session: two requests continue the first, one of them without its output, and another one continues
    one of these; a last one branches off inside the first and replaces all three. broken: the second is aborted, and
    the fourth still runs when it is replaced."""
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
    last = replace(four, after=(two.name, three.name, five.name), session=back)
    if broken:
        endless = replace(_cut(five), abort_after=None, replaced=True)
        fourth = replace(endless, after=(two.name, three.name), session=Continuation(name, False, three.name))
        last = replace(last, after=(), beside=five.name)
    return [root, second, third, fourth, last]


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
