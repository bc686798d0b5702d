"""The step loop: plan, launch, resolve. `lag` is the number of launched steps that may wait unread.

Spec v1 is lag 0, spec v2 is lag 1. There is no third difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic

from engine.core.errors import LedgerError
from engine.core.finish import StopRules
from engine.core.plan import Executor, Handle, PlanRow, StepPlan, StepResult
from engine.core.probes import Probes
from engine.core.request import Finish, Phase, Request
from engine.core.schedule import Scheduler
from engine.core.transcript import TextStream, Transcript


class Loop(Generic[Handle]):
    """Drives requests to their end. The only writer of Request.output, transcript and logprobs."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor[Handle],
        probes: Probes,
        *,
        lag: int,
        eos_ids: frozenset[int],
        text_stream: Callable[[], TextStream],
        strict_memory: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.probes = probes
        self.lag = lag
        self.eos_ids = eos_ids
        self.strict_memory = strict_memory
        self.pending: deque[tuple[StepPlan, Handle]] = deque()
        self._text_stream = text_stream
        self._rules: dict[int, StopRules] = {}
        self._abandoned: set[int] = set()

    def add(self, request: Request) -> None:
        """Queue a request; RequestError if it can never run."""
        self.scheduler.add(request)
        request.transcript = Transcript(self._text_stream())
        self._rules[request.rid] = StopRules.of(request.params, self.eos_ids)

    def abort(self, rid: int) -> bool:
        """Stop a request; False if it had ended."""
        return self.scheduler.abort(rid)

    def forget(self, rid: int) -> None:
        """Drop an ended request."""
        del self.scheduler.requests[rid], self._rules[rid]

    def abandon(self, rid: int) -> None:
        """Abort a request that nobody waits for; it is forgotten once nothing of it is in flight."""
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
        """One turn: launch what can run, then read results that are older than the lag allows.

        LedgerError if requests wait of which none can ever run.
        """
        plan = self.scheduler.plan()
        if plan is not None:
            if self.pending:
                self.probes.hit("overlap.in_flight")
            self.pending.append((plan, self.executor.launch(plan)))
        elif not self.pending and self.scheduler.has_work:
            raise LedgerError("no request can run and nothing is in flight")
        while len(self.pending) > (self.lag if plan is not None else 0):
            self._resolve(*self.pending.popleft())
        if self._abandoned:
            self._forget_abandoned()
        if self.strict_memory:
            self.scheduler.check()

    def _resolve(self, plan: StepPlan, handle: Handle) -> None:
        result = self.executor.collect(handle)
        self.probes.hit("stamp.checked", result.stamps_checked)
        self.probes.hit("stamp.wrong", result.stamps_wrong)
        ledger = self.scheduler.ledger
        requests = [self.scheduler.requests[row.rid] for row in plan.rows]
        if not plan.prefill:
            self._observe(plan, result, requests)
        for index, (row, request) in enumerate(zip(plan.rows, requests, strict=True)):
            count = result.counts[index]
            ledger.settle(row.account, row.width if plan.prefill else count)
            if ledger.window is not None:
                self.probes.hit("window.slid", ledger.slide(row.account))
            if request.phase is not Phase.RUNNING:
                self.probes.hit("overlap.dropped")
                continue
            if result.lies is not None and result.lies[index] is not None:
                self.scheduler.finish(request, Finish("error", message=result.lies[index]))
                continue
            if not plan.prefill:
                self._count_round(request, row, result, index)
            self._deliver(request, result, index)
            if plan.prefill and row.last_chunk and request.phase is Phase.RUNNING:
                self.scheduler.publish(request)
        self.scheduler.release_drained(requests)

    def _observe(self, plan: StepPlan, result: StepResult, requests: list[Request]) -> None:
        """Tell the depth's controller what the live requests accepted, under the round's own width."""
        if self.scheduler.steps.adapts:
            pairs = zip(result.counts, requests, strict=True)
            live = [count - 1 for count, request in pairs if request.phase is Phase.RUNNING]
            self.scheduler.steps.observe(len(requests), plan.rows[0].width, live)

    def _count_round(self, request: Request, row: PlanRow, result: StepResult, index: int) -> None:
        count = result.counts[index]
        request.metrics.count(count, row.width)
        if row.width > 1:
            self.probes.hit("spec.drafted", row.width - 1)
            self.probes.hit("spec.accepted", count - 1)
            self.probes.hit("spec.rejected", count == 1)
            self.probes.hit("spec.full_accept", count == len(result.tokens[index]))
            self.probes.hit("tree.branched", result.branched[index])
            self.probes.hit("tree.compacted", result.moved[index])

    def _deliver(self, request: Request, result: StepResult, index: int) -> None:
        """Hand over the accepted tokens one by one, until the request ends."""
        count = result.counts[index]
        rules, output, transcript = self._rules[request.rid], request.output, request.transcript
        assert transcript is not None
        shown = len(output)
        for j, token in enumerate(result.tokens[index][:count]):
            output.append(token)
            finish = rules.judge(token, len(output), transcript)
            if finish is not None:
                self.probes.hit(
                    "finish.length"
                    if finish.reason == "length"
                    else "finish.stop_string"
                    if isinstance(finish.matched, str)
                    else "finish.stop_token"
                )
                self.probes.hit("finish.context", request.num_tokens == self.scheduler.context_length)
                self.probes.hit("finish.overshoot", count - 1 - j)
                self.scheduler.finish(request, finish)
                break
        taken = len(output) - shown
        self.probes.hit("sample.greedy" if request.params.greedy else "sample.random", taken)
        if result.logprobs is not None:
            self._note_logprobs(request, result, index, taken)

    def _note_logprobs(self, request: Request, result: StepResult, index: int, taken: int) -> None:
        if request.params.wants_logprobs and result.logprobs is not None:
            request.logprobs.extend(result.logprobs[index][:taken])
        best = request.params.top_logprobs_num
        if best and result.top_logprobs is not None:
            request.top_logprobs.extend(column[:best] for column in result.top_logprobs[index][:taken])
