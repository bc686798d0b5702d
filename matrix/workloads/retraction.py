"""Two streaming sessions whose second turns compete for memory: the younger is retracted and resumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from specmatrix.matrix.cells.start_settings import SessionRetract
from specmatrix.matrix.workloads.refusals import contended_line
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.sessions import REPLIES, line, scored

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
