"""Random schedules on this engine's own scheduler, ledger and step loop, over a device that computes nothing: each step
must be the second scheduler's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.memory.groups import page_groups
from specmatrix.engine.core.memory.ledger import Entry, Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import Request, SamplingParams
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.loop import Loop
from specmatrix.errors import described
from specmatrix.matrix.oracles.ledger import audit
from specmatrix.matrix.oracles.needed_work import Sizes, WorkMismatch
from specmatrix.matrix.oracles.work import WorkReplay
from specmatrix.matrix.subjects.observations import Moment, SentRequest
from specmatrix.reports.wording import count

# Most tokens of a prompt and of an output, and of what prompts have in common.
PROMPT, OUTPUT, COMMON = 14, 14, 8
MOST: Final = 500  # more steps than a few requests take


def first_failure(numbers: Iterable[int], lag: int) -> str:
    """A sentence on the first of these schedules in which a step is not the second scheduler's or the engine raises;
    else "". lag: steps in flight, one more in odd schedules."""
    for number in numbers:
        flying = lag + number % 2
        try:
            _run(Random(number), flying)
        except Exception as error:  # a broken engine may raise anything
            said = str(error) if isinstance(error, WorkMismatch) else described(error)
            return f"in the random schedule {number} with {count(flying, 'step')} in flight, {said}"
    return ""


def _run(random: Random, lag: int) -> None:
    page, scale, width, rows = random.choice((1, 2, 4)), random.choice((0, 0, 4)), random.choice((1, 2, 4)), 4
    chunk, caches, span = random.choice((None, 3, 5)), random.random() < 0.6, random.randrange(3)
    mixed, ragged = chunk is not None and random.random() < 0.3, random.random() < 0.3
    pages = -(-(PROMPT + OUTPUT + (lag + 1) * width + random.randrange(12)) // page)
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
        context_length=PROMPT + OUTPUT,
        ragged=ragged,
        mixed=mixed,
    )

    def launch(plan: StepPlan) -> StepResult:
        counts = [random.randint(1, row.width) if plan.nodes else int(row.following is None) for row in plan.rows]
        no = [False] * len(counts)
        return StepResult([[1] * count for count in counts], counts, no, no)

    device: Any = SimpleNamespace(launch=launch, collect=lambda result: result)
    stream = partial(SimpleNamespace, push=lambda tokens: "")
    loop = Loop(scheduler, device, counters, lag=lag, eos_ids=frozenset(), text_stream=stream)
    requests, moments = _serve(loop, random, journal)
    sent = {r.rid: SentRequest(r.rid, r.rid, r.prompt, r.params.max_new_tokens, False, -1) for r in requests}
    audit(journal)
    WorkReplay(journal, sizes, sent, {one.rid: tuple(one.tokens) for one in requests}, {}).run(moments)


def _serve(loop: Loop[StepResult], random: Random, journal: Sequence[Entry]) -> tuple[list[Request], list[Moment]]:
    """Some requests, which come and are aborted at any step, to their end, and when they did."""
    common = [random.randrange(9) for _ in range(COMMON)]
    left, asked, moments = random.randint(3, 8), list[Request](), list[Moment]()
    while left or loop.busy:
        while left and (len(asked) < 2 or random.random() < 0.3):
            prompt = common[: random.randrange(COMMON)] + [random.randrange(9) for _ in range(random.randint(1, 6))]
            params = SamplingParams(max_new_tokens=random.randint(1, OUTPUT))
            asked.append(Request(len(asked) + 1, tuple(prompt), params, 0))
            loop.add(asked[-1])
            moments.append(Moment(len(journal), "send", len(asked)))
            left -= 1
        drains = [one for one in asked if one.retracting]
        at, rid = len(journal), random.choice(drains or asked).rid
        if random.random() < (0.3 if drains else 0.03) and loop.abort(rid):
            moments.append(Moment(at, "abort", rid))
        moments.append(Moment(len(journal), "step", 0))
        loop.step()
        if len(moments) > MOST:
            raise WorkMismatch(f"{len(asked)} requests have not ended after {MOST} steps")
    for one in asked:
        due = "length" if len(one.output) == one.params.max_new_tokens else "abort"
        if one.finish is None or one.finish.reason != due:
            raise WorkMismatch(f"request {one.rid} has {len(one.output)} tokens and ended by {one.finish}")
    return asked, moments
