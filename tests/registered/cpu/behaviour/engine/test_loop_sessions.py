"""Streaming sessions at lags 0 to 3 on the toy device: what a turn inherits, however the previous one, its page and its
chunk ended."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.simulation.scenario import Abort, ArrivingRequest, Close, Scenario, SimulationSetup
from specmatrix.matrix.simulation.toy import VOCAB, reference
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


SETUPS = st.builds(
    SimulationSetup,
    lag=st.integers(0, 3),
    page_size=st.sampled_from([1, 2, 4, 16]),
    pages=st.integers(6, 40),
    steps=st.integers(0, 4),
    adaptive=st.booleans(),
    rows=st.integers(1, 3),
    chunk=st.sampled_from([None, 1, 4]),
    cache=st.booleans(),
    key_span=st.integers(0, 2),
    eos=st.booleans(),
    window=st.sampled_from([None, None, 2, 5]),
    spare_window=st.integers(0, 4),
    timeout=st.sampled_from([None, 3]),
)


class SessionMachine(RuleBasedStateMachine):
    """Events and steps in any order; the world checks the invariants."""

    @initialize(setup=SETUPS)
    def start(self, setup):
        self.world = World(setup)
        self.done = False

    @rule(
        tokens=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
        new=st.integers(1, 12),
        stop=st.sampled_from([(), (), ("ab",), ("c",)]),
        session=st.sampled_from([None, 0, 0, 1]),
    )
    def ask(self, tokens, new, stop, session):
        self.world.reap()
        self.world.fire(ArrivingRequest(0, tuple(tokens), new, stop, session))

    @rule(back=st.integers(1, 3))
    def abort(self, back):
        if len(self.world.asked) >= back:
            self.world.fire(Abort(0, len(self.world.asked) - back))

    @rule(session=st.integers(0, 1))
    def close(self, session):
        self.world.reap()
        self.world.fire(Close(0, session))

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.world.now += 1
            self.world.reap()
            if self.world.loop.busy:
                self.world.step()

    @invariant()
    def every_law_holds(self):
        if hasattr(self, "world"):
            self.world.scheduler.check()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        for _ in range(3000):
            if not self.world.loop.busy:
                break
            self.world.step()
        self.world.finish()
        self.world.audit()


SessionMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)
TestSessions = SessionMachine.TestCase
