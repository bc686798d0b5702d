"""Runs a schedule on the engine's own scheduler, ledger, sessions and loop, and checks their invariants.

The history and KV that a session must keep are tracked independently, from the returned tokens and from what the toy
device computed.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot
from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.core.memory.ledger import Entry, replay
from specmatrix.engine.core.schedule.request import Phase, Request, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams, Sessions
from specmatrix.engine.core.schedule.step import StepResult
from specmatrix.engine.loop import Loop
from specmatrix.errors import RequestError
from specmatrix.matrix.oracles.ledger import audit
from tools.simulation.scenario import BOS, Abort, ArrivingRequest, Event, Scenario, SimulationSetup
from tools.simulation.toy import ToyExecutor, reference, toy_loop

LIMIT: Final = 3_000  # steps; more for a few requests means a livelock
EOS: Final = (2,)
SLOTS: Final = (AdaptiveSlot(1, (1, 3), 1.0, 1, 1), AdaptiveSlot(3, (1, 2), 0.5, 1, 0))


class Violation(Exception):
    """The engine violated an invariant that is not a law of the ledger."""


def phase_of(request: Request) -> str:
    """One of `PHASES`, or "done"."""
    if request.phase is Phase.RUNNING:
        return "decoding" if request.decoding else "prefill"
    return "retracting" if request.retracting else request.phase.value


class SessionModel:
    """The expected history of one streaming session."""

    def __init__(self, name: str, now: int) -> None:
        self.name = name
        self.used = now
        self.history: tuple[int, ...] = ()
        self.turn: Request | None = None
        self.live: list[Request] = []

    def shown(self) -> tuple[int, ...]:
        """All tokens up to the last turn that was not aborted."""
        turn = self.turn
        if turn is not None and turn.finish is not None and turn.finish.reason != "abort":
            return (*turn.prompt, *turn.output)
        return self.history


class World:
    """One engine on the toy device and the progress of its schedule. Raises Violation for a broken invariant."""

    def __init__(self, setup: SimulationSetup) -> None:
        self.setup = setup
        self.loop = _loop(setup)
        self.scheduler = self.loop.scheduler
        self.ledger = self.scheduler.ledger
        self.journal: list[Entry] = []
        self.ledger.subscribe(self.journal.append)
        self.eos = EOS if setup.eos else ()
        self.sessions = Sessions(self.scheduler, streaming=True, bos_id=BOS, text_length=len)
        self.lines: dict[int, SessionModel] = {}
        self.closed: list[SessionModel] = []
        self.asked: list[Request | None] = []  # None if the request was refused
        self.now = 0
        self._waiting: list[Request] = []  # turns that were waiting after the last step
        self._turns: list[Request] = []  # turns that have not been released
        self._planned: list[tuple[Request, str]] = []  # aborts that wait for a phase
        self._aborted: list[Request] = []
        self._found = Counter[str]()  # phases in which aborts found their requests

    def run(self, events: tuple[Event, ...]) -> Counter[str]:
        """Run all events and requests to the end. Returns the counters; raises Violation or the engine's exception."""
        left = list(reversed(events))
        while left or self.loop.busy:
            if self.now > LIMIT:
                raise Violation(f"the schedule has not ended after {LIMIT} steps")
            if not self.loop.busy and left:
                self.now = max(self.now, left[-1].at)
            self.reap()
            while left and left[-1].at <= self.now:
                self.fire(left.pop())
            if self.loop.busy:
                self.step()
            self.now += 1
        self.finish()
        return Counter(self.loop.counters.counts) + self._found

    def fire(self, event: Event) -> None:
        """Apply one event now."""
        if isinstance(event, ArrivingRequest):
            self._ask(event)
        elif isinstance(event, Abort):
            request = self.asked[event.request] if event.request < len(self.asked) else None
            if request is not None:
                self._planned.append((request, event.phase))
                self._abort_planned()
        elif event.session in self.lines:
            line = self.lines.pop(event.session)
            self.closed.append(line)
            self.sessions.close(line.name)

    def _ask(self, ask: ArrivingRequest) -> None:
        """Queue a request, or check that it is refused exactly if it must be."""
        request = self._request(ask, ask.tokens) if ask.session is None else self._turn(ask, ask.session)
        self.asked.append(request)
        if request is not None:
            self.loop.add(request)

    def _request(self, ask: ArrivingRequest, prompt: tuple[int, ...]) -> Request | None:
        if not self._fits(len(prompt) + ask.new):
            return None
        params = SamplingParams(max_new_tokens=ask.new, stop=ask.stop)
        return Request(len(self.asked) + 1, prompt, params, 0)

    def _turn(self, ask: ArrivingRequest, key: int) -> Request | None:
        if key not in self.lines:
            name = self.sessions.open(1_000_000, None, True, self.setup.timeout, self.now)
            self.lines[key] = SessionModel(name, self.now)
        line = self.lines[key]
        history = line.shown()
        new = ask.tokens[1:] if history and ask.tokens[0] == BOS else ask.tokens
        free = (line.turn is None or line.turn.finish is not None) and bool(new)
        try:
            turn = self.sessions.judge(SessionParams(line.name), ask.tokens)
        except RequestError as refusal:
            if free:
                raise Violation(f"a turn was refused although it is valid: {refusal}") from None
            return None
        if not free:
            raise Violation(f"session {line.name} accepted a second turn in flight, or one without a new token")
        if turn.prompt != (*history, *new):
            raise Violation(f"session {line.name} builds the prompt {turn.prompt}; expected {(*history, *new)}")
        request = self._request(ask, turn.prompt)
        if request is not None:
            self.sessions.begin(turn, request, self.now)
            line.history, line.turn, line.used = history, request, self.now
            line.live.append(request)
            self._turns.append(request)
            self._waiting.append(request)
        return request

    def _fits(self, length: int) -> bool:
        """Whether a request of `length` tokens can run alone; the engine must agree."""
        fits = length + self.scheduler.overrun <= self.setup.pages * self.setup.page_size
        longest = Request(1, (0,) * (length - 1), SamplingParams(max_new_tokens=1), 0)
        try:
            self.scheduler.admission.check(longest)
        except RequestError as refusal:
            if fits:
                raise Violation(f"a request that fits was refused: {refusal}") from None
        else:
            if not fits:
                raise Violation(f"a request of {length} tokens was accepted that can never fit")
        return fits

    def step(self) -> None:
        """Run one engine step and check its effect on sessions."""
        held = {a.rid: a.committed for a in self.ledger.accounts.values() if a.held}
        dropped = self.loop.counters.counts["session.dropped"]
        self.loop.step()
        dropped = self.loop.counters.counts["session.dropped"] - dropped
        for request in self._waiting:
            if request.phase is Phase.WAITING:
                continue
            if request.inherited != held.get(request.account, 0) and (request.inherited or not dropped):
                raise Violation(
                    f"request {request.rid} inherited {request.inherited} positions; its session held "
                    f"{held.get(request.account, 0)}"
                )
        for request in self._turns:
            if request.phase is Phase.DONE:
                self._check_kept(request)
        self._look()
        self._abort_planned()
        self.reap()

    def _abort_planned(self) -> None:
        """Send the aborts whose requests are in the phase that they wait for. One for retracted requests takes any, as
        there are few."""
        live = [one for one in self.asked if one is not None and one.phase is not Phase.DONE]
        left, found = [], []
        for request, phase in self._planned:
            among = live if phase == "retracting" else [request]
            victim = next((one for one in among if phase in ("", phase_of(one))), None)
            if victim is not None:
                found.append(victim)
            elif request in live or phase == "retracting":
                left.append((request, phase))
        self._planned = left
        for request in found:
            self._found[f"simulated.abort_{phase_of(request)}"] += 1
            self._abort(request)

    def _look(self) -> None:
        self._turns = [request for request in self._turns if request.phase is not Phase.DONE]
        self._waiting = [request for request in self._turns if request.phase is Phase.WAITING]

    def _check_kept(self, request: Request) -> None:
        """Check that a turn leaves exactly the right number of KV positions to its session."""
        assert request.finish is not None
        executor = self.loop.executor
        assert isinstance(executor, ToyExecutor)
        shown = len(request.prompt) + len(request.output)
        aborted = request.finish.reason == "abort"
        expected = request.inherited if aborted else min(shown, executor.computed[request.account])
        account = self.ledger.accounts.get(request.account)
        kept = 0 if account is None or not account.held else account.committed
        if kept != expected and not (aborted and self.setup.window is not None and kept == 0):
            raise Violation(
                f"request {request.rid} returned {shown} tokens and inherited {request.inherited}; its session keeps "
                f"{kept} positions, expected {expected}"
            )

    def _abort(self, request: Request) -> None:
        """Abort between two steps; this may change the KV of the request's own session only."""
        held = {a.rid: a.committed for a in self.ledger.accounts.values() if a.held}
        turns = [turn for turn in self._turns if turn.phase is not Phase.WAITING]
        phase, live = phase_of(request), request.finish is None
        if self.loop.abort(request.rid) is not live:
            raise Violation(f"an abort of request {request.rid}, which is {phase}, returned {not live}")
        if live:
            self._aborted.append(request)
        ended = [turn for turn in turns if turn.phase is Phase.DONE]
        for turn in ended:
            self._check_kept(turn)
        spare = {turn.account for turn in ended}
        now = {a.rid: a.committed for a in self.ledger.accounts.values() if a.held and a.rid not in spare}
        if now != held:
            raise Violation(f"an abort changed the positions of other sessions from {held} to {now}")
        self._look()

    def reap(self) -> None:
        """Check that exactly the sessions idle for longer than their timeout are closed."""
        self.sessions.reap(self.now)
        for key, line in list(self.lines.items()):
            line.live = [request for request in line.live if request.phase is not Phase.DONE]
            if line.live or self.setup.timeout is None:
                line.used = self.now
            elif self.now - line.used > self.setup.timeout:
                self.closed.append(self.lines.pop(key))
        expected, found = sorted(line.name for line in self.lines.values()), sorted(self.sessions.sessions)
        if expected != found:
            raise Violation(f"the engine has the open sessions {found}; expected {expected}")

    def finish(self) -> None:
        """Check at the end that tokens equal plain decoding's and that no page leaked."""
        for request in self.asked:
            if request is not None:
                self._check_output(request)
        for line in self.lines.values():
            self.sessions.close(line.name)
        self.sessions.reap(self.now)
        if self.ledger.accounts:
            raise Violation(f"accounts {sorted(self.ledger.accounts)} are open after all requests and sessions ended")
        self.scheduler.check()
        if self.ledger.counts.held:
            raise Violation(f"{self.ledger.counts.held} pages leaked: {self.ledger.counts}")

    def _check_output(self, request: Request) -> None:
        if request.finish is None or request.phase is not Phase.DONE:
            raise Violation(f"request {request.rid} never ended")
        tokens, text, finish = reference(request.prompt, request.params, self.eos)
        if request in self._aborted and request.finish.reason != "abort":
            raise Violation(f"request {request.rid} was aborted and ended by {request.finish.reason}")
        if request.finish.reason == "abort":
            if request.output != tokens[: len(request.output)]:
                raise Violation(
                    f"request {request.rid} returned {request.output} before its abort; plain decoding gives {tokens}"
                )
        elif (request.output, request.text, request.finish) != (tokens, text, finish):
            raise Violation(
                f"request {request.rid} returned {request.output} ({request.finish}); plain decoding gives {tokens} "
                f"({finish})"
            )

    def audit(self) -> None:
        """Replay the journal with the engine's own replay and with the independent audit."""
        for again, group in zip(replay(self.journal).groups, self.ledger.groups, strict=True):
            if again.free != group.free or again.owner != group.owner:
                raise Violation(f"replaying the journal gives other free {group.name} pages or owners than the run")
        audited = audit(self.journal)
        if (audited.pages, audited.free, audited.cached, len(audited.holdings)) != (*self.ledger.counts, 0):
            raise Violation(f"the audit ends with {audited.free} free and {audited.cached} cached pages")


def _loop(setup: SimulationSetup) -> Loop[StepResult]:
    slots = SLOTS if setup.adaptive else None
    width = setup.steps + 1
    overrun = (setup.lag + 1) * (max(SLOTS[0].candidate_steps) + 1 if slots else width)
    windows = []
    if setup.window is not None:
        room = setup.pages * setup.page_size
        step = (setup.lag + 1) * max(overrun // (setup.lag + 1), room if setup.chunk is None else setup.chunk)
        pages = SlidingWindow(1, setup.page_size, setup.window, overrun).budget(room, room, step)
        windows = [SlidingWindow(pages + setup.spare_window, setup.page_size, setup.window, overrun)]
    return toy_loop(
        lag=setup.lag,
        page_size=setup.page_size,
        pages=setup.pages,
        width=width,
        rows=setup.rows,
        chunk=setup.chunk,
        cache=setup.cache,
        key_span=setup.key_span,
        eos=EOS if setup.eos else (),
        windows=windows,
        slots=slots,
    )


def run(scenario: Scenario, audited: bool = True) -> Counter[str]:
    """Run one schedule. Returns its counters; raises Violation or the engine's exception."""
    world = World(scenario.setup)
    counters = world.run(scenario.events)
    if audited:
        world.audit()
    return counters
