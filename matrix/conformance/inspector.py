"""Inspects how a drafter uses its inputs, its results and the host; part of the conformance suite only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.spec.drafter import Drafter, DraftTree, VerifyResult
from specmatrix.engine.spec.guard import BATCH
from specmatrix.matrix.conformance.sync_detector import SyncDetector


class Copy(NamedTuple):
    """A tensor and an earlier copy of it. violation: the message if the two differ later."""

    violation: str
    tensor: Tensor
    copy: Tensor

    def differs(self) -> Tensor | bool:
        """Scalar bool tensor. Does not synchronise with the GPU, as a graph capture may be in progress."""
        if self.tensor.shape != self.copy.shape or self.tensor.dtype is not self.copy.dtype:
            return True
        if self.tensor.device.type == "cpu":
            return not torch.equal(self.tensor, self.copy)
        return (self.tensor != self.copy).any()


class InspectedDrafter:
    """A drafter whose hooks are inspected.

    Violations: a host read without the trait reads_host, a write into an input, and a returned tensor that changes
    before the next hook runs, as another thread still writes to it.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._found: dict[str, Tensor | bool] = {}
        self._returned: list[Copy] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the drafter's attribute
        return getattr(self._drafter, name)

    @property
    def violations(self) -> tuple[str, ...]:
        """The violations so far; waits for the device."""
        with torch.inference_mode():
            self._compare(self._returned)
        subject = f"the drafter of {self._drafter.traits.name}"
        return tuple(f"{subject} {violation}" for violation, found in self._found.items() if found)

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        inputs = {"tokens": tokens, "sampled": sampled, "following": following}
        state: DraftState | None = self._call("prime", inputs, batch, tokens, aux, sampled, following)
        return state

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        tree: DraftTree = self._call("propose", {}, batch, relay)
        return tree

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState | None:
        inputs = {f"verdict.{name}": tensor for name, tensor in verdict._asdict().items() if tensor is not None}
        state: DraftState | None = self._call("absorb", inputs, batch, verdict, aux)
        return state

    def _call(self, hook: str, inputs: Mapping[str, Tensor], batch: StepBatch, *given: object) -> Any:  # noqa: ANN401
        # A graph replay would read the tensor's memory after it is reused.
        captured = batch.rows.is_cuda and torch.cuda.is_current_stream_capturing()
        if not captured:
            self._compare(self._returned)
        self._returned = []
        lent = [_copied(f"wrote into {name} in {hook}", each) for name, each in {**_tensors(batch), **inputs}.items()]
        detector = SyncDetector()
        try:
            with nullcontext() if self._drafter.traits.reads_host else detector:
                result = getattr(self._drafter, hook)(batch, *given)
        finally:
            self._compare(lent)
            if detector.seen is not None:
                self._found[f"read a tensor on the host ({detector.seen}) in {hook} without the trait reads_host"] = (
                    True
                )
        fields = result._asdict() if isinstance(result, DraftTree) else result
        self._returned = [
            _copied(f"changed {name!r} after {hook} had returned it", tensor)
            for name, tensor in (fields.items() if isinstance(fields, Mapping) else ())
            if isinstance(tensor, Tensor) and not captured
        ]
        return result

    def _compare(self, copies: Iterable[Copy]) -> None:
        for each in copies:
            found, differs = self._found.get(each.violation, False), each.differs()
            if isinstance(found, Tensor) and isinstance(differs, Tensor):
                # In place, so that a replayed graph adds to it too.
                found.logical_or_(differs)
            elif found is False or differs is True:
                self._found[each.violation] = differs


def inspect_drafter(llm: LLM) -> InspectedDrafter | None:
    """Inspect an engine's drafter from now on; None if the engine does not guard it (`strict_memory`)."""
    executor: Any = llm.loop.executor
    if executor.guard is None:
        return None
    executor.guard.drafter = inspected = InspectedDrafter(executor.guard.drafter)
    return inspected


def _copied(violation: str, tensor: Tensor) -> Copy:
    return Copy(violation, tensor, tensor.clone(memory_format=torch.contiguous_format))


def _tensors(batch: StepBatch) -> dict[str, Tensor]:
    """The tensors of a batch and its relay, by the names that a drafter's author knows."""
    named = {f"batch.{name}": getattr(batch, name) for name in (*BATCH, "positions", "write")}
    if batch.relay is not None:
        sampling = {f"relay.sampling.{name}": tensor for name, tensor in batch.relay.sampling._asdict().items()}
        named |= {"relay.length": batch.relay.length, "relay.last": batch.relay.last, **sampling}
    return {name: tensor for name, tensor in named.items() if tensor is not None}
