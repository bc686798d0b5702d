"""The step loop: plan, launch, resolve. `lag` is the number of launched steps whose results may be unread.

Spec v1 is lag 0, spec v2 is lag 1. There is no third difference.

A launch is a transaction. A device failure that one request causes ends only that request: the step is rolled back, its
requests run again, each in steps of its own, and the request whose own step fails ends with an error. An interrupt,
which is what the handler of any signal raises, rolls back every step in flight. An engine or device bug breaks the loop
permanently.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from specmatrix.engine.core.draft.verify_budget import survivals
from specmatrix.engine.core.observe.step_counter import Counters, Delivery, RowOutcome, StepCounter, StepObserver
from specmatrix.engine.core.schedule.grammar import NO_TOKEN_LEFT, NOTHING, UNSATISFIABLE
from specmatrix.engine.core.schedule.request import Finish, OutputText, Phase, Request, StopRules, TextStream
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.step import Executor, Handle, PlanRow, StepPlan, StepResult
from specmatrix.engine.interrupts import Interrupts
from specmatrix.errors import EngineBug, EngineError, LedgerError, NotFiniteError, described

log = logging.getLogger("specmatrix.engine")

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class Loop(Generic[Handle]):
    """Runs requests to completion. The only writer of Request.output, transcript and logprobs.

    isolates: whether a failed step may be rolled back; not possible with several ranks, because the others continue.
    observers: receive every step, in order; the first one counts. broken: the first bug, after which nothing runs any
    more; None if there was none.
    """

    scheduler: Scheduler
    executor: Executor[Handle]
    counters: Counters
    _: KW_ONLY
    lag: int
    eos_ids: frozenset[int]
    text_stream: Callable[[], TextStream]
    strict_memory: int = 0
    isolates: bool = True
    observers: Sequence[StepObserver] = ()

    def __post_init__(self) -> None:
        self.observers = (StepCounter(self.counters, self.scheduler.context_length), *self.observers)
        self.interrupts = Interrupts()
        self.broken: str | None = None
        self.pending: deque[tuple[StepPlan, Handle]] = deque()
        self._rules: dict[int, StopRules] = {}
        self._abandoned: set[int] = set()
        self._logged = ""  # the last logged failure of a shared step
        self._rolled_back = False  # a propagating exit has already rolled back the steps in flight

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestError if it can never run."""
        self.scheduler.add(request)
        request.transcript = OutputText(self.text_stream())
        self._rules[request.rid] = StopRules.of(request.params, self.eos_ids)

    def abort(self, rid: int) -> bool:
        """Stop a request; False if it has already ended."""
        return self.scheduler.abort(rid)

    def forget(self, rid: int) -> None:
        """Drop an ended request."""
        del self.scheduler.requests[rid], self._rules[rid]
        self.scheduler.isolated.pop(rid, None)
        self._forget_readers()

    @property
    def _ended_readers(self) -> list[int]:
        """Requests that the drafter still reads, though they have ended."""
        requests, readers = self.scheduler.requests, getattr(getattr(self.executor, "drafter", None), "readers", ())
        return [rid for rid in readers if rid not in requests or requests[rid].phase is Phase.DONE]

    def _forget_readers(self) -> None:
        drafter = getattr(self.executor, "drafter", None)
        for rid in self._ended_readers:
            drafter.forget(rid)

    def alive(self) -> dict[str, int]:
        """Resources held, by kind; all zero when idle."""
        scheduler = self.scheduler
        return {
            "requests": len(scheduler.requests),
            "queued": len(scheduler.waiting) + len(scheduler.active),
            "stop_rules": len(self._rules),
            "abandoned": len(self._abandoned),
            "isolated": len(scheduler.isolated),
            "steps": len(self.pending),
            "rows": scheduler.max_running - len(scheduler.free_rows),
            "accounts": len(scheduler.ledger.accounts),
            "held": len(scheduler.held),
            "readers": len(self._ended_readers),
        }

    def abandon(self, rid: int) -> None:
        """Abort a request if it still runs, and forget it once none of its steps are in flight."""
        self.abort(rid)
        self._abandoned.add(rid)
        self._forget_abandoned()

    def _forget_abandoned(self) -> None:
        for rid in [rid for rid in self._abandoned if self.scheduler.requests[rid].phase is Phase.DONE]:
            self._abandoned.remove(rid)
            self.forget(rid)

    @property
    def busy(self) -> bool:
        """Whether any request or launched step is left."""
        return self.scheduler.has_work or bool(self.pending)

    def step(self) -> None:
        """One iteration: launch a step if possible, then resolve steps that are older than the lag allows.

        Raises LedgerError if requests are waiting but none can ever run; like any EngineBug it breaks the loop, and
        later calls raise EngineError. What a signal's handler raises, and exits leave the loop as if no step were in
        flight.
        """
        self.check()
        try:
            self._iterate()
        except BaseException as error:
            # Any other exit comes from another thread, in the middle of a state change.
            if not self._rolled_back:
                self._break(error)
            self._rolled_back = False
            raise

    def check(self) -> None:
        """Raise EngineError if the loop is broken."""
        if self.broken is not None:
            raise EngineError(f"the engine is broken and accepts no more calls; its first error was {self.broken}")

    def _iterate(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self._launch(plan)
        elif not self.pending and self.scheduler.has_work:
            raise LedgerError("no request can run and nothing is in flight")
        while len(self.pending) > (self.lag if plan is not None else 0):
            self._collect(*self.pending.popleft())
        if self._abandoned:
            self._forget_abandoned()
        self._forget_readers()
        if self.strict_memory:
            self.scheduler.check()

    def _launch(self, plan: StepPlan) -> None:
        for observer in self.observers:
            observer.planned(plan, len(self.pending))
        handle = self._attempt(plan, self.executor.launch, plan)
        if handle is None:
            self.scheduler.cancel(plan)
        else:
            self.pending.append((plan, handle))

    def _collect(self, plan: StepPlan, handle: Handle) -> None:
        result = self._attempt(plan, self.executor.collect, handle)
        if result is None:
            # Every later step used values that the failed step left on the device.
            self._drop_in_flight()
            self._rolled_back = False
            self.executor.clear([group.free for group in self.scheduler.ledger.groups])
        else:
            self._resolve(plan, result)

    def _attempt(self, plan: StepPlan, call: Callable[[Argument], Answer], argument: Argument) -> Answer | None:
        """The result of an executor call for a step; None if it failed because of the step's requests."""
        try:
            with self.interrupts.window:
                return call(argument)
        except EngineBug:
            raise
        except BaseException as error:
            if error is self.interrupts.raised or not isinstance(error, Exception):
                self._drop_in_flight()
                raise
            if not self.isolates:
                raise
            self._isolate(plan, error)
            return None

    def _drop_in_flight(self) -> None:
        """Forget every launched step; its requests run again."""
        self.pending.clear()
        self.executor.drop()
        self.scheduler.rollback()
        self._rolled_back = True

    def _isolate(self, plan: StepPlan, error: Exception) -> None:
        """End the request whose own step failed; run the requests of a shared step alone until their steps succeed.

        A request that read what an earlier one left in its pages is not at fault: it runs once more.
        """
        rid = plan.rows[0].rid
        again = isinstance(error, NotFiniteError) and rid not in self.scheduler.isolated
        if len(plan.rows) == 1 and not again:
            self._fail(self.scheduler.requests[rid], error)
        else:
            if not isinstance(error, NotFiniteError):  # its message in the request's result is enough
                self._logged = described(error)
                log.warning(
                    "a step with %d requests failed; each request will run alone", len(plan.rows), exc_info=error
                )
            self.scheduler.isolate(plan)

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request that made the engine raise an error."""
        # The failure of the shared step before it was logged with the same traceback.
        known = request.rid in self.scheduler.isolated and described(error) == self._logged
        if not isinstance(error, NotFiniteError):
            log.warning(
                "request %d was stopped after %s", request.rid, described(error), exc_info=None if known else error
            )
        message = (
            f"the request made the engine raise {described(error)}; it was stopped, and its tokens so far are exact"
        )
        self.scheduler.end(request, Finish("error", message=message))

    def _break(self, error: BaseException) -> None:
        """Stop permanently: live requests end with an error, and every later step reports this first cause."""
        self.broken = described(error)
        self.pending.clear()
        self.scheduler.end_all(Finish("error", message=f"the engine broke: {self.broken}"))

    def _resolve(self, plan: StepPlan, result: StepResult) -> None:
        requests = [self.scheduler.requests[row.rid] for row in plan.rows]
        if not plan.prefill:
            self._adapt(plan, result, requests)
        deliveries: list[Delivery] = []
        try:
            for index, request in enumerate(requests):
                deliveries.append(self._resolve_row(plan, result, index, request))
            self.scheduler.release_drained(requests)
        finally:
            for observer in self.observers:
                observer.resolved(plan, result, deliveries)

    def _resolve_row(self, plan: StepPlan, result: StepResult, index: int, request: Request) -> Delivery:
        row, count = plan.rows[index], result.counts[index]
        self.scheduler.settle(row, row.width if plan.prefill else count)
        if request.phase is not Phase.RUNNING:
            return request, RowOutcome.DROPPED, 0, None
        if result.draft_errors is not None and result.draft_errors[index] is not None:
            self.scheduler.finish(request, Finish("error", message=result.draft_errors[index]))
            return request, RowOutcome.INVALID, 0, None
        if not plan.prefill:
            request.metrics.count(count, plan.nodes if result.lengths is None else result.lengths[index])
            if result.confidences is not None:
                request.survivals = survivals(result.confidences[index])
        try:
            if result.prompt_logprobs is not None:
                self._note_prompt(request, row, result, index)
            delivery = self._deliver(request, result, index, plan.prefill)
        except EngineBug:
            raise
        except Exception as error:
            self._fail(request, error)
            delivery = request, RowOutcome.FAILED, 0, None
        if self.scheduler.isolated:
            self.scheduler.passed(plan, request)
        if plan.prefill and row.last_chunk and request.phase is Phase.RUNNING:
            self.scheduler.publish(request)
        return delivery

    def _adapt(self, plan: StepPlan, result: StepResult, requests: list[Request]) -> None:
        """Report the accepted drafts of live requests to the depth controller, with the round's own width."""
        if self.scheduler.steps.adapts:
            pairs = zip(result.counts, requests, strict=True)
            live = [count - 1 for count, request in pairs if request.phase is Phase.RUNNING]
            self.scheduler.steps.observe(len(requests), plan.nodes, live)

    def _deliver(self, request: Request, result: StepResult, index: int, outside: bool) -> Delivery:
        """Deliver the accepted tokens one by one, until the request ends. outside: they are not of a round."""
        count = result.counts[index]
        rules, output, transcript = self._rules[request.rid], request.output, request.transcript
        assert transcript is not None
        shown, finish = len(output), None
        for column, token in enumerate(result.tokens[index][:count]):
            if result.legality is not None and result.legality[index][column] == NOTHING:
                finish = Finish("error", UNSATISFIABLE, NO_TOKEN_LEFT.format(count=len(output)))
            else:
                output.append(token)
                finish = rules.judge(token, len(output), transcript)
            if finish is not None:
                transcript.read()
                if transcript.failure is not None:
                    raise transcript.failure
                self.scheduler.finish(request, finish)
                break
        taken = len(output) - shown
        if outside:
            request.metrics.outside.extend(range(shown, len(output)))
        if result.logprobs is not None:
            self._note_logprobs(request, result, index, taken)
        return request, RowOutcome.DELIVERED, taken, finish

    def _note_prompt(self, request: Request, row: PlanRow, result: StepResult, index: int) -> None:
        """Add the log-probabilities of the prompt tokens after a chunk's positions, each once."""
        if request.params.logprob_start_len == 0 and not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
            request.prompt_top_logprobs.append([])
        scores, tops = result.prompt_logprobs, result.prompt_top_logprobs
        assert scores is not None
        best = request.params.top_logprobs_num
        for place in range(request.unscored - row.start - 1, min(row.width, len(request.prompt) - row.start - 1)):
            request.prompt_logprobs.append(scores[index][place])
            request.prompt_top_logprobs.append(tops[index][place][:best] if tops is not None else [])

    def _note_logprobs(self, request: Request, result: StepResult, index: int, taken: int) -> None:
        if request.params.wants_logprobs and result.logprobs is not None:
            request.logprobs.extend(result.logprobs[index][:taken])
        best = request.params.top_logprobs_num
        if best and result.top_logprobs is not None:
            request.top_logprobs.extend(column[:best] for column in result.top_logprobs[index][:taken])
