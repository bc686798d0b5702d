"""Copies between host and device that neither waits for: small lists on their way to the device, and a step's results,
named tensors on the device, on their way to the host."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.errors import LedgerError


def integers(numbers: Iterable[int], device: torch.device) -> Tensor:
    """Numbers, at least one -> int64 [n]. Through a buffer: torch.tensor iterates over the numbers twice."""
    buffer = torch.frombuffer(array("q", numbers), dtype=torch.int64)
    return sent(buffer, device)


def floats(numbers: Iterable[float], device: torch.device) -> Tensor:
    """Numbers, at least one -> float32 [n]."""
    buffer = torch.frombuffer(array("f", numbers), dtype=torch.float32)
    return sent(buffer, device)


def sent(buffer: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; itself on a CPU."""
    if device.type == "cpu":
        return buffer
    # A copy from pageable memory synchronises; torch keeps pinned memory until the copy has completed.
    return buffer.pin_memory().to(device, non_blocking=True)


def received(tensor: Tensor) -> Tensor:
    """A tensor on the host, after a wait for it that a step declares and the synchronisation count leaves out."""
    if tensor.device.type == "cpu":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return there


class StepOutput(NamedTuple):
    """A step's output for the host; a field is None if the step does not produce it. D + 1: longest path.

    tokens [B, D+1] and count [B]: `tokens[:, :count]` are the accepted tokens, bonus included; a prefill step has one
    column, and count 0 for a chunk that is not the last. drafts [B, N]: the proposed trees, in audited steps.
    moved [B] bool: the accepted path was not a dense prefix. branched [B] bool: the proposed tree had siblings.
    stamps [2]: KV slots whose stamps were compared, and how many were wrong. logprobs [B, D+1]: of `tokens`.
    top_values, top_ids [B, D+1, K]: the most likely tokens. prompt_logprobs [B, W], prompt_values and prompt_ids
    [B, W, K]: the same of the token after each position of a prefill chunk, meaningless past its end. codes [B]: the
    guard's codes, in guarded steps. finite [B] bool: what the target computed for the tokens is finite. legality
    [B, D+1] int64: of `tokens`, in constrained steps, as in `core.schedule.grammar`. grammar int64 [B, 2]:
    GrammarRows.counts of a round with token tables. lengths [B]: nodes that each row verified, in rounds that may
    verify fewer than N. confidences [B, N - 1] float32: of the drafts, in rounds with a budget.
    """

    tokens: Tensor
    count: Tensor
    drafts: Tensor | None = None
    moved: Tensor | None = None
    branched: Tensor | None = None
    stamps: Tensor | None = None
    logprobs: Tensor | None = None
    top_values: Tensor | None = None
    top_ids: Tensor | None = None
    prompt_logprobs: Tensor | None = None
    prompt_values: Tensor | None = None
    prompt_ids: Tensor | None = None
    codes: Tensor | None = None
    finite: Tensor | None = None
    legality: Tensor | None = None
    grammar: Tensor | None = None
    lengths: Tensor | None = None
    confidences: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> StepOutput:
        """Apply a function to every tensor."""
        return self._make([None if tensor is None else change(tensor) for tensor in self])

    def first(self, rows: int) -> StepOutput:
        """The output of the first rows, without the padding rows after them."""
        return self.map(lambda tensor: tensor[:rows])._replace(stamps=self.stamps)


class Staged(NamedTuple):
    """One step's output, being copied to the host. Ready when `event` has completed (always, on a CPU)."""

    slot: int
    output: StepOutput
    event: torch.cuda.Event | None


class StagingRing:
    """`lag` + 1 slots, each protected by its step's event; a slot is reused only after it was read."""

    def __init__(self, lag: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._slots = lag + 1
        self.drop()

    def drop(self) -> None:
        """Forget the outputs that were not read."""
        self._free = list(range(self._slots))

    def put(self, output: StepOutput) -> Staged:
        """Start copying an output to the host. Does not wait; raises LedgerError if no slot is free."""
        if not self._free:
            raise LedgerError("no staging slot is free: none of their outputs was read")
        if not self._cuda:
            return Staged(self._free.pop(), output, None)
        host = output.map(self._copy)
        event = torch.cuda.Event()
        event.record()
        return Staged(self._free.pop(), host, event)

    def take(self, staged: Staged) -> StepOutput:
        """Wait for the copies and free the slot."""
        if staged.event is not None:
            staged.event.synchronize()
        self._free.append(staged.slot)
        return staged.output

    @staticmethod
    def _copy(tensor: Tensor) -> Tensor:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return target.copy_(tensor, non_blocking=True)
