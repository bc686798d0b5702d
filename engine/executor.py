"""Runs plans on the device. A launch reads nothing from the device; `collect` waits for a step and reads it.

Checks are layers of a stack that `engine.build` assembles: a step wraps another step to check it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, NoReturn

import torch

from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.cuda_graphs import CudaGraphs, GraphShape, pad_kv_len
from specmatrix.engine.device.staging import Staged, StagingRing, StepOutput
from specmatrix.engine.device_step import DeviceStep, Step
from specmatrix.engine.spec.drafter import Drafter
from specmatrix.engine.spec.guard import Guard
from specmatrix.errors import EngineBug, KernelError


class InFlight(NamedTuple):
    """A launched step: its plan, and its output being copied to the host."""

    plan: StepPlan
    staged: Staged


class DeviceExecutor:
    """Holds every device buffer; makes no decisions.

    plain: the innermost step. step: the whole stack of steps. run: runs the stack. around: a context entered around
    every launch. drafter and guard are parts of the stack, exposed for readback.
    """

    def __init__(
        self,
        plain: DeviceStep,
        step: Step,
        run: StepRunner,
        staging: StagingRing,
        *,
        drafter: Drafter,
        guard: Guard | None = None,
        around: AbstractContextManager[None] | None = None,
    ) -> None:
        self.plain, self.step, self.run, self.staging = plain, step, run, staging
        self.target, self.kv, self.relay, self.ranks = plain.target, plain.kv, plain.relay, plain.ranks
        self.drafter, self.guard = drafter, guard
        self._around = nullcontext() if around is None else around
        # Shared by all steps: a decorator would create one per call. The caller's autocast would change results.
        self._inference = torch.inference_mode()
        self._exact = torch.autocast(self.relay.length.device.type, enabled=False)

    @property
    def graphs(self) -> CudaGraphs | None:
        """The CUDA graphs; None if rounds run without them."""
        return self.run.graphs

    def launch(self, plan: StepPlan) -> InFlight:
        """Launch a step without waiting for the device. Raises KernelError if the device failed."""
        with _device_errors(), self._inference, self._exact, self._around:
            self.kv.extend(plan.rows)
            self.relay.admit(plan.rows)
            if plan.budget is not None:
                self.relay.budget.fill_(plan.budget)
            if plan.prefill:
                self.plain.rules.admit(plan.rows)
                self.plain.masks.admit(plan.rows)
            staged = self.staging.put(self.run(plan))
            if plan.constrained:
                self.plain.masks.launched(plan, staged)
            return InFlight(plan, staged)

    def collect(self, handle: InFlight) -> StepResult:
        """Wait for a step and read it. Raises KernelError if the device failed, NotFiniteError if the target computed
        NaN or infinite numbers."""
        with _device_errors():
            return self.step.read(self.staging.take(handle.staged))

    def clear(self, free: Sequence[Sequence[int]]) -> None:
        """Zero these pages, by KV group, in target and drafts."""
        with _device_errors():
            for group, pages in zip(self.kv.groups, free, strict=True):
                for pool in group.pools:
                    pool.clear(pages)

    def drop(self) -> None:
        """Forget the launched steps that were not collected."""
        self.staging.drop()
        self.plain.masks.drop()


class ReleasedExecutor:
    """The executor of an engine whose memory is released, which accepts no request."""

    guard = drafter = None

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineBug(f"the engine needs {name} while its memory is released")


class StepRunner:
    """Runs plans whose uploads have been started: rounds as CUDA graphs if there are `graphs`, everything else eagerly.

    step: the whole stack of steps; plain: the innermost one."""

    def __init__(self, step: Step, plain: DeviceStep, graphs: CudaGraphs | None = None) -> None:
        self.step, self.graphs = step, graphs
        self._table, self._relay, self._masks = plain.kv.full.table, plain.relay, plain.masks

    def __call__(self, plan: StepPlan) -> StepOutput:
        if self.graphs is None or plan.prefill:
            return self._eager(plan)
        # Adjusted logits use tensors that are created per batch, so their addresses are not fixed.
        held = plan.adjusts or not self.step.repeatable
        if len(plan.rows) > self.graphs.max_batch or held:
            self.graphs.counters.hit("graph.eager")
            return self._eager(plan)
        return self._graphed(plan, self.graphs)

    def _eager(self, plan: StepPlan) -> StepOutput:
        return self.step.run(plan, StepBatch.of(plan, self._relay, self._table))

    def _graphed(self, plan: StepPlan, graphs: CudaGraphs) -> StepOutput:
        """Run a round as a CUDA graph. Padding requests use row 0, which owns no page and stays empty."""
        table, relay = self._table, self._relay
        rows, generations = graphs.set_rows([row.row for row in plan.rows], [row.generation for row in plan.rows])
        width, padded_kv_len = plan.width, pad_kv_len(plan.bound, table.positions)
        given = (rows, generations, width, padded_kv_len, relay, table)
        relay.settle()

        def whole_round() -> StepOutput:
            output = self.step.run(plan, StepBatch.round(*given, plan.greedy))
            relay.settle()
            relay.length[:1].zero_()
            return output

        shape = GraphShape(plan.greedy, plan.logprobs, len(rows), width, padded_kv_len, self._masks.path(plan))
        try:
            output = graphs.run(shape, plan, whole_round)
        except BaseException:
            # A failed capture recorded the published tensors but never computed them.
            relay.drop()
            raise
        return output.first(len(plan.rows))


@contextmanager
def _device_errors() -> Iterator[None]:
    """Convert device errors to KernelError: not attributable to the current step, and no later step can be trusted."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise KernelError(f"the device failed: {' '.join(str(error).split())}") from error
