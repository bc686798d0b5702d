"""Workloads in which requests depend on one another: turns of sessions, and batches that grow and shrink in waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.subjects.protocol import Ask, Continuation
from specmatrix.matrix.workloads.refusals import contended_line, contended_tree

# Requests that run together, wave by wave.
WAVES: Final = (1, 8, 32, 8, 1)
# In a larger batch every third request stays plain, beside the sessions.
PLAIN_EVERY: Final = 3
# What is said after the first turn, and the limits of the answers to it: inside a round, at its end, and one token.
REPLIES: Final = (" Then the number doubles.", "\n#### Why?")
REPLY_LIMITS: Final = (23, 16, 1)
# In the smallest memory a whole conversation must fit where a lone request does: after the first turn it takes no more
# than this.
TIGHT_LATER: Final = 55
TIGHT_REPLY_LIMITS: Final = (11, 8, 1)
OFFSET: Final = 21
# The turns ask for no log-probabilities, for those of their tokens, and for so many alternatives to each, in turn.
ALTERNATIVES: Final = 3
ABORTED_TURN: Final = 3  # tokens of the turn that is aborted


def in_waves(sizes: Sequence[int], make: Callable[[int, int], Ask]) -> list[Ask]:
    """Waves of requests, each sent once the wave before has ended. make: wave and place to the request."""
    asks: list[Ask] = []
    before: tuple[str, ...] = ()
    for wave, size in enumerate(sizes):
        now = [replace(make(wave, place), after=before) for place in range(size)]
        before = tuple(ask.name for ask in now)
        asks += now
    return asks


def conversations(asks: Sequence[Ask], streaming: bool, memory: int | None, short: bool, aborts: bool) -> list[Ask]:
    """The first turn of a session for each ask (but some plain ones in a larger batch), followed by its other turns.

    memory: positions, where tight. short: few tokens a turn. aborts: the second turn of the first session is aborted,
    and the first of the second one.
    """
    out: list[Ask] = []
    for place, ask in enumerate(asks):
        if len(asks) > PLAIN_EVERY and place % PLAIN_EVERY == PLAIN_EVERY - 1:
            out.append(ask)
            continue
        first = ask
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


def line(first: Ask, place: int, limits: Sequence[int], cut: int | None) -> list[Ask]:
    """A streaming session: one turn after the other. cut: the second turn is aborted after so many tokens, so the third
    follows the first."""
    name = f"s{place}"
    turns = [replace(first, session=Continuation(name, True))]
    good = None if first.abort_after is not None else first.name
    for number, limit in enumerate(limits, start=2):
        ask = _reply(first, number, limit)
        turn = replace(ask, after=(turns[-1].name,), session=Continuation(name, True, good))
        if good is None:
            # What comes after a beginning that never was is a beginning itself.
            turn = replace(turn, prompt=first.prompt)
        if cut is not None and number == 2:
            turn = _cut(turn, cut)
        else:
            good = turn.name
        turns.append(turn)
    return turns


def _branches(first: Ask, place: int, limits: Sequence[int], broken: bool) -> list[Ask]:
    """An ordinary session: two requests continue the first, one of them without its output; a last one goes back to a
    point inside the first and clears both of them."""
    name = f"b{place}"
    root = replace(first, session=Continuation(name, False))
    two, three, four = (_reply(first, number, limit) for number, limit in enumerate(limits, start=2))
    after = (first.name,)
    if first.abort_after is not None:
        # Nobody continues an aborted request: its tokens depend on the moment.
        beginnings = [replace(ask, prompt=first.prompt, after=after) for ask in (two, three)]
        return [root, *(replace(ask, session=Continuation(name, False)) for ask in beginnings)]
    second = replace(two, after=after, session=Continuation(name, False, first.name))
    bare = Continuation(name, False, first.name, drop_previous_output=True)
    third = replace(three, after=after, session=bare)
    if broken:
        second = _cut(second)
    back = Continuation(name, False, first.name, offset=OFFSET, replace=True)
    return [root, second, third, replace(four, after=(two.name, three.name), session=back)]


def scored(turns: Sequence[Ask], place: int) -> list[Ask]:
    """The turns of a session, each with another demand for log-probabilities than the one before."""
    modes = ((False, 0), (True, 0), (True, ALTERNATIVES))
    asked = [modes[(place + number) % len(modes)] for number in range(len(turns))]
    return [replace(turn, logprobs=own, top_logprobs=top) for turn, (own, top) in zip(turns, asked, strict=True)]


def _cut(ask: Ask, after: int = ABORTED_TURN) -> Ask:
    """A request that is certain to be aborted: nothing else ends it so early."""
    return replace(ask, abort_after=after, ignore_eos=True, stop=(), stop_token_ids=())


def _reply(first: Ask, number: int, limit: int) -> Ask:
    """A later request of a session: short, sampled and ended as the first."""
    return replace(
        first,
        name=f"{first.name}.turn{number}",
        prompt=REPLIES[number % len(REPLIES)],
        max_new_tokens=limit,
        seed=first.seed + 100 * number,
        abort_after=None,
        answer=None,
    )
