"""Streaming sessions at lags 0 to 3 on the toy device: what a turn inherits, however the previous one, its page and its
chunk ended."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.simulation.scenario import ArrivingRequest, Scenario, SimulationSetup
from specmatrix.matrix.simulation.toy import reference
from specmatrix.matrix.simulation.world import World, run

TURNS = ((1, 2, 5), (4,), (3, 7, 7, 0, 9))


def talked(setup: SimulationSetup, ends, beside=()) -> list[tuple[int, int]]:
    """Turns of one session, one after another: (tokens shown before, inherited) of each but the first.

    The world checks that tokens are those of the whole history sent again and that no position more or less is kept.
    """
    world = World(setup)
    for ask in beside:
        world.fire(ask)
    found = []
    for tokens, (new, stop) in zip(TURNS, ends, strict=True):
        world.fire(ArrivingRequest(0, tokens, new, stop, 0))
        request = world.asked[-1]
        before = len(request.prompt) - len(tokens) + (tokens[0] == 3 and len(request.prompt) > len(tokens))
        while request.finish is None or world.loop.pending:
            world.step()
        found.append((before, request.inherited))
    while world.loop.busy:
        world.step()
    world.finish()
    world.audit()
    return found[1:]


LENGTHS = [tuple(((1 + (first + 3 * turn) % 8), ()) for turn in range(3)) for first in range(8)]
STOPS = [((30, ("a",)), (30, ("c", "bb")), (30, ("dd", "e"))), ((30, ("g",)), (2, ()), (30, ("f",)))]


@pytest.mark.parametrize("page_size", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_a_session_alone_inherits_every_token_that_was_shown_and_computed(lag, page_size):
    seen = set()
    for ends in (*LENGTHS, *STOPS):
        for steps in (0, 1, 4):
            for eos in (False, True):
                setup = SimulationSetup(
                    lag, page_size, max(1, -(-300 // page_size)), steps, chunk=3 if steps == 1 else None, eos=eos
                )
                for shown, inherited in talked(setup, ends):
                    seen.add(shown - inherited)
                    # Alone, the round behind the last one is always in flight: it computes the last token.
                    assert lag == 0 or inherited == shown
                    assert lag > 0 or steps > 0 or inherited == shown - 1
    assert seen == ({0, 1} if lag == 0 else {0})


def test_the_ends_of_the_grid_fall_inside_runs_and_at_their_ends_by_every_rule():
    finishes = {
        reference((1, 2, 5), SamplingParams(max_new_tokens=new, stop=stop), eos)[2].reason
        + type(reference((1, 2, 5), SamplingParams(max_new_tokens=new, stop=stop), eos)[2].matched).__name__
        for ends in (*LENGTHS, *STOPS)
        for new, stop in ends
        for eos in ((), (2,))
    }
    assert finishes == {"lengthNoneType", "stopstr", "stopint"}
    counters = run(
        Scenario(SimulationSetup(1, 4, 80, 4), tuple(ArrivingRequest(9 * i, (1, i), 1 + i, (), i) for i in range(9)))
    )
    assert counters["finish.overshoot"] > 0 and counters["session.trimmed"] > counters["finish.overshoot"]
