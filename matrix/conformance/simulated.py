"""Random schedules on this engine's own scheduler, ledger and step loop, over a device that computes nothing: each step
must be the second scheduler's. Random rounds for its controller of adaptive depth, whose depths must be the second
one's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from specmatrix.engine.adaptive_policies import policy_of
from specmatrix.engine.core.config.asked import Resolved
from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.memory.groups import page_groups
from specmatrix.engine.core.memory.ledger import Entry, Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import Finish, Request, SamplingParams
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.session import SessionParams, Sessions
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.loop import Loop
from specmatrix.errors import NotFiniteError, RequestError, described
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.oracles.adaptive import AdaptiveMismatch, AdaptiveReplay
from specmatrix.matrix.oracles.ledger import audit
from specmatrix.matrix.oracles.needed_work import Sizes, WorkMismatch
from specmatrix.matrix.oracles.work import WorkReplay
from specmatrix.matrix.subjects.observations import Moment, Observation, SentRequest, Trace
from specmatrix.reports.wording import count

# Most tokens of a prompt and of an output, and of what it has in common with an earlier text.
PROMPT, OUTPUT, COMMON = 14, 14, 11
MOST: Final = 500  # more steps than a few requests take
# How many more schedules have a request whose steps fail, which is one of the first, and tokens that end their request:
# EOS, and a stop string.
ROUGH, FAILED, EOS, STOP = 6, 4, 2, 3
TALKS: Final = "ab"  # their sessions
# Rounds of a controller, and their largest batch.
ROUNDS, BATCH = 200, 40


def first_failure(numbers: Iterable[int], lag: int) -> str:
    """A sentence on the first of these schedules in which a step is not the second scheduler's or the engine raises;
    else "". lag: steps in flight, one more in odd schedules. Behind them, numbered below 0, come some in which the
    steps of a request fail: it ends with an error, and all others by their tokens, not alone for ever."""
    for number in (*numbers, *(~one for one in [*numbers][:ROUGH])):
        flying = lag + number % 2
        try:
            _run(Random(number) if number >= 0 else Random(str(number)), flying, number < 0)
        except Exception as error:  # a broken engine may raise anything
            said = str(error) if isinstance(error, WorkMismatch) else described(error)
            return f"in the random schedule {number} with {count(flying, 'step')} in flight, {said}"
    return ""


def _run(random: Random, lag: int, rough: bool = False) -> None:
    page, scale, width, rows = random.choice((1, 2, 4)), random.choice((0, 0, 4)), random.choice((1, 2, 4)), 4
    chunk, caches, span = random.choice((None, 3, 5)), random.random() < 0.6, random.randrange(3)
    mixed, ragged = chunk is not None and random.random() < 0.3, random.random() < 0.3
    pages = -(-(PROMPT + OUTPUT + (lag + 1) * width + random.randrange(40)) // page)
    states = -(-pages // scale) + random.randrange(4) if scale else 0
    sizes = Sizes(pages, page, chunk, rows, lag, width, span, caches, None, int(ragged), scale * page, states, mixed)
    counters, journal = Counters(), list[Entry]()
    ledger = Ledger(*page_groups(pages, page, None, 0, 0, states, scale))
    ledger.subscribe(journal.append)
    steps = DraftSteps.static(width - 1, width, counters)
    scheduler = Scheduler(
        ledger,
        PrefixCache(ledger, span, caches),
        counters,
        steps=steps,
        overrun=sizes.overrun,
        max_running=rows,
        chunk=chunk,
        context_length=pages * page,
        ragged=ragged,
        mixed=mixed,
    )
    bad, results = random.randint(1, FAILED) if rough else 0, deque[tuple[StepResult, bool]]()
    writers = list[int]()

    def launch(plan: StepPlan) -> StepResult:
        writers.extend(row.generation for row in plan.rows if row.admit is not None)
        fault = bad in [row.rid for row in plan.rows]
        if fault and random.random() < 0.5:
            raise NotFiniteError("this request's logits are not finite")
        counts = [random.randint(1, row.width) if plan.nodes else int(row.following is None) for row in plan.rows]
        no = [False] * len(counts)
        tokens = [random.choices((1, EOS, STOP), (16, 1, 1), k=count) if rough else [1] * count for count in counts]
        result = StepResult(tokens, counts, no, no)
        results.append((result, fault))
        return result

    def collect(result: StepResult) -> StepResult:
        if results.popleft()[1]:
            raise NotFiniteError("this request's logits are not finite")
        return result

    device: Any = SimpleNamespace(launch=launch, collect=collect, drop=results.clear, clear=lambda free: None)
    loop = Loop(scheduler, device, counters, lag=lag, eos_ids=frozenset({EOS}), text_stream=Letters)
    _check_room(scheduler)
    requests, moments = _serve(loop, random, journal, bad)
    audit(journal)
    if len(writers) > len({*writers}):
        raise WorkMismatch(f"not each residence has a generation of its own: {writers}")
    if rough:  # the second scheduler knows nothing of failures
        return
    sent = {r.rid: SentRequest(r.rid, r.account, r.prompt, r.params.max_new_tokens, r.holds, -1) for r in requests}
    WorkReplay(journal, sizes, sent, {one.rid: tuple(one.tokens) for one in requests}, {}).run(moments)


def _check_room(scheduler: Scheduler) -> None:
    """The largest request that can run alone is taken, and one of a token more is refused."""
    pages = scheduler.ledger.groups[0]
    room = pages.num_pages * pages.page_size - scheduler.overrun
    for prompt, refused in ((room - 1, False), (room, True)):
        try:
            scheduler.admission.check(Request(0, (1,) * prompt, SamplingParams(max_new_tokens=1), 0))
            said = ""
        except RequestError as error:
            said = str(error)
        if bool(said) is not refused:
            raise WorkMismatch(f"a request of {prompt + 1} tokens for a room of {room} is {said or 'taken'}")


class Letters:
    """The text of tokens as digits."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, tokens: Sequence[int]) -> str:
        """Add tokens; the whole text."""
        self.text += "".join(map(str, tokens))
        return self.text


def _serve(
    loop: Loop[StepResult], random: Random, journal: Sequence[Entry], bad: int
) -> tuple[list[Request], list[Moment]]:
    """Some requests, which come and are aborted at any step, to their end, and when they did. bad: one that fails."""
    left, asked, moments = random.randint(3, 24), list[Request](), list[Moment]()
    sessions = Sessions(loop.scheduler, True, None, len) if bad else None
    if sessions is not None:
        for name in TALKS:
            sessions.open(MOST, name, True, None, 0.0)
    while left or loop.busy:
        while left and (len(asked) < 2 or random.random() < 0.3):
            asked.append(_request(len(asked) + 1, asked, random, sessions))
            loop.add(asked[-1])
            moments.append(Moment(len(journal), "send", len(asked)))
            left -= 1
        drains = [one for one in asked if one.retracting]
        at, rid = len(journal), random.choice(drains or asked).rid
        if random.random() < (0.3 if drains else 0.03):
            if loop.abort(rid):
                moments.append(Moment(at, "abort", rid))
            elif asked[rid - 1].finish is None:
                raise WorkMismatch(f"an abort of request {rid}, which has not ended, has no effect")
        moments.append(Moment(len(journal), "step", 0))
        loop.step()
        if len(moments) > MOST:
            raise WorkMismatch(f"{len(asked)} requests have not ended after {MOST} steps")
    for one in asked:
        due = "length" if len(one.output) == one.params.max_new_tokens else "abort"
        due = "stop" if {*one.output[-1:]} & {EOS, STOP} else due
        due = "error" if one.rid == bad and due == "abort" and one.finish != Finish("abort") else due
        # A failed round runs again behind a prefill, which yields one token.
        alone = one.num_tokens > loop.scheduler.isolated.get(one.rid, (False, one.num_tokens))[1] + 1
        if one.finish is None or one.finish.reason != due or alone or {*one.output[:-1]} & {EOS, STOP}:
            how = f"{one.finish}{', alone' * alone}"
            raise WorkMismatch(f"request {one.rid} has {len(one.output)} tokens and ended by {how}")
    return asked, moments


def _request(rid: int, asked: Sequence[Request], random: Random, sessions: Sessions | None) -> Request:
    """A new request: the next turn of a session, the first of one, or one that only begins as an earlier text does.
    sessions: those of rough schedules; others only have their accounts."""
    turns = {one.account: one for one in asked if one.holds}
    idle = [one for one in turns.values() if one.finish and one.finish.reason == "length" and len(one.tokens) < PROMPT]
    before = random.choice(idle) if idle and random.random() < 0.5 else None
    text = random.choice(asked[:3]).tokens[: random.choice((COMMON, random.randrange(COMMON)))] if asked else ()
    prompt = (*(before.tokens if before else text), *(random.randrange(9) for _ in range(random.choice((1, 1, 2, 6)))))
    params = SamplingParams(max_new_tokens=random.choice((1, random.randint(1, OUTPUT))))
    if sessions is not None:
        params = replace(params, stop=(str(STOP),), min_new_tokens=random.randrange(2))
        return _turn(sessions, random.choice(TALKS), asked, Request(rid, prompt[:PROMPT], params, 0))
    request = Request(rid, prompt[:PROMPT], params, 0)
    request.account, request.holds = before.account if before else rid, before is not None or random.random() < 0.6
    return request


def _turn(sessions: Sessions, name: str, asked: Sequence[Request], request: Request) -> Request:
    """The last token of a request as the next turn of a session, which takes it if its last turn has ended; else the
    request itself."""
    turns = [one for one in asked if one.holds and one.account == sessions.sessions[name].account]
    free, new = not turns or turns[-1].finish is not None, request.prompt[-1:]
    history = next((one.tokens for one in reversed(turns) if one.finish not in (None, Finish("abort"))), [])
    try:
        turn = sessions.judge(SessionParams(name), new)
    except RequestError as refused:
        if free:
            raise WorkMismatch(f"turn {request.rid} of session {name} is refused: {refused}") from None
        return request
    if not free or turn.prompt != (*history, *new):
        raise WorkMismatch(f"turn {request.rid} of session {name} has the history {turn.prompt}, not {history}")
    if len(turn.prompt) > PROMPT:
        return request
    request = Request(request.rid, turn.prompt, request.params, 0)
    sessions.begin(turn, request, 0.0)
    return request


def depths(steps: DraftSteps, rounds: Iterable[tuple[int, Sequence[float]]], lag: int) -> Trace:
    """What a controller decides in rounds of these numbers of requests, each with the shares of its drafts that the
    requests which have not ended accept. lag: rounds in flight."""
    flying, names = deque[tuple[int, int, Sequence[float]]](), [one.name for one in fields(Observation)]

    def read(left: int) -> None:
        while len(flying) > left:
            size, width, shares = flying.popleft()
            steps.observe(size, width, [int(share * width) for share in shares[:size]])

    for size, shares in rounds:
        flying.append((size, steps.activate(size), shares))
        read(lag)
    read(0)
    seen = tuple(Observation(**{name: getattr(one, name) for name in names}) for one in steps.trace)
    return Trace(tuple((one.batch_size, one.width) for one in steps.rounds), seen)


def wrong_depth(cell: Cell, shape: Resolved, tolerance: float, numbers: Iterable[int]) -> str:
    """A sentence on the first of random rounds in which this engine's controller does not decide as the second one, or
    raises; else "". tolerance: of an average, in drafts."""
    slots, first, graphs = shape.adaptive_slots, shape.num_steps, shape.cuda_graph_max_bs
    assert slots
    for number in numbers:
        random, rounds, size = Random(number), list[tuple[int, list[float]]](), 1
        for _ in range(ROUNDS):
            near = random.choice(slots).batch_from + random.randrange(4)
            size = random.choice((size, size, size, near, random.randint(1, BATCH)))
            rounds.append((size, [random.random() for _ in range(random.randrange(6))]))
        try:
            steps = DraftSteps(slots, first, Counters(), policy=policy_of(slots, first), graph_batch=graphs)
            AdaptiveReplay(cell, shape.lag, tolerance, graph_batch=graphs).walk(depths(steps, rounds, shape.lag))
        except Exception as error:  # a broken engine may raise anything
            said = str(error) if isinstance(error, AdaptiveMismatch) else described(error)
            return f"in random rounds {number}, {said}"
    return ""
