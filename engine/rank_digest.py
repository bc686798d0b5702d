"""Digests of a rank's plans, drafts and results, so that all ranks can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.counters import Counters
from specmatrix.engine.core.observe.rank_agreement import PLAN, RESULT, StepDigest, digest
from specmatrix.engine.core.observe.step_counter import Delivery
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.staging import StepOutput
from specmatrix.engine.device_step import Step
from specmatrix.engine.spec.drafter import AgreedDrafts


class RankDigest:
    """Observes the loop: publishes digests of the ledger's journal and each plan before launch, and of each result."""

    def __init__(self, ledger: Ledger, publish: Callable[[StepDigest], None], counters: Counters) -> None:
        self._publish, self._counters = publish, counters
        self._journal = blake2b(digest_size=8)
        ledger.subscribe(lambda entry: self._journal.update(repr(entry).encode()))

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        self._counters.hit("rank.step")
        self._publish(StepDigest(PLAN, (self._journal.hexdigest(), digest(plan))))

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        tokens = [row[:count] for row, count in zip(result.tokens, result.counts, strict=True)]
        self._publish(StepDigest(RESULT, (digest(tokens), digest(result.drafts), digest(result.draft_errors))))


class AuditedStep:
    """A step whose result also contains the drafts."""

    def __init__(self, step: Step, drafts: AgreedDrafts) -> None:
        self._step, self._drafts = step, drafts

    @property
    def repeatable(self) -> bool:
        return self._step.repeatable

    def run(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        output = self._step.run(plan, batch)
        return output._replace(drafts=self._drafts.take())

    def read(self, output: StepOutput) -> StepResult:
        result = self._step.read(output)
        return result if output.drafts is None else result._replace(drafts=output.drafts.tolist())
