"""What ended requests and sessions leave behind, so that memory grows with every request."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

STALE: Final = "stale or un-restored state"
LEFT: Final = "rule: an engine at rest holds nothing of ended requests"

GROWTH_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="stop-rules-never-forgotten",
        klass=STALE,
        origin=LEFT,
        within="Loop.forget",
        old="        del self.scheduler.requests[rid], self._rules[rid]\n",
        new="        del self.scheduler.requests[rid]\n",
        expected=("rest",),
        cells=("none.pair",),
        why="the stop rules of every request stay",
    ),
    Fault(
        id="readers-never-evicted",
        klass=STALE,
        origin=LEFT,
        within="NgramDrafter._read",
        old="            del self.readers[next(iter(self.readers))]\n",
        new="            pass\n",
        expected=("rest",),
        cells=("ngram.k1.n8.burst", "ngram.v2.tight.m4.burst.length"),
        why="the n-gram reader of every text stays",
    ),
    Fault(
        id="sessions-always-busy",
        klass=STALE,
        origin=LEFT,
        within="Sessions.reap",
        old="        self._busy = [session for session in self._busy if session.busy()]\n",
        new="        self._busy = [session for session in self._busy if session.busy() or True]\n",
        expected=("rest",),
        cells=("none.v1.p4.pair.stream",),
        why="a session is swept for ever after it has ended",
    ),
    Fault(
        id="closed-sessions-stay",
        klass=STALE,
        origin="sglang#21875: several session leaks",
        within="Sessions._sweep",
        old="            self.closing.remove(session)\n",
        new="",
        expected=("rest",),
        cells=("none.v1.p4.pair.stream",),
        why="the list of closing sessions only grows",
    ),
    Fault(
        id="turns-kept-by-their-session",
        klass=STALE,
        origin="sglang#21875: several session leaks",
        within="Sessions.begin",
        old="        session.live.append(request)\n",
        new="        session.live.append(request)\n        self.__dict__.setdefault('turns', []).append(request)\n",
        expected=("rest",),
        cells=("none.v1.p4.pair.stream",),
        why="every turn's request stays, with its prompt and its text",
    ),
)
