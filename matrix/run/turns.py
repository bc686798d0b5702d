"""Interleaves calls so that noise affects all sides equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def by_turns(calls: Sequence[Callable[[int], Result]], turns: int, warm: int = 1) -> list[list[Result]]:
    """The results of each call by turn. Every second turn makes the calls in reverse order.

    A call gets the number of the turn, from 0; results of the `warm` turns before, with numbers below 0, are dropped.
    """
    found: list[list[Result]] = [[] for _ in calls]
    for turn in range(-warm, turns):
        places = range(len(calls)) if turn < 0 or turn % 2 == 0 else reversed(range(len(calls)))
        for place in places:
            result = calls[place](turn)
            if turn >= 0:
                found[place].append(result)
    return found
