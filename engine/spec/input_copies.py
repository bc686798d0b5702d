"""Copies of a guarded drafter's inputs, so that its writes reach neither the engine nor other rounds.

Without them a drafter that fills `batch.rows` would overwrite tensors that rounds and engines share.
"""

from __future__ import annotations

from copy import copy as shallow_copy
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.spec.drafter import Verdict

BATCH: Final = ("rows", "start", "root", "slots", "lengths", "generations", "positions", "write")
# All copied inputs, by the names that a drafter's author knows.
NAMES: Final = (
    *(f"batch.{name}" for name in BATCH),
    "relay.length",
    "relay.last",
    *(f"relay.sampling.{name}" for name in SamplingRows._fields),
    *(f"verdict.{name}" for name in Verdict._fields),
    "tokens",
    "sampled",
    "following",
)


class InputCopy(NamedTuple):
    """One input: the engine's tensor, which is not written to meanwhile, and the drafter's copy."""

    name: str
    own: Tensor
    copy: Tensor

    def differs(self) -> Tensor:
        """[] bool, on the device; a different shape or dtype is detected on the host."""
        if self.own.shape != self.copy.shape or self.own.dtype is not self.copy.dtype:
            return torch.ones((), dtype=torch.bool, device=self.own.device)
        return (self.own != self.copy).any()


class InputCopies:
    """The copies for one step. batch: the drafter's, whose relay shares only the carried state with the engine's."""

    def __init__(self, batch: StepBatch) -> None:
        self._copies: list[InputCopy] = []
        given = {name: getattr(batch, name) for name in BATCH}
        copies = {name: self.copy(f"batch.{name}", tensor) for name, tensor in given.items() if tensor is not None}
        positions, write = copies.pop("positions"), copies.pop("write")
        relay = None if batch.relay is None else self._relay(batch.relay)
        self.batch = replace(batch, relay=relay, **copies)
        self.batch.positions, self.batch.write = positions, write

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of an engine tensor, which `written` compares with the original. name: one of NAMES."""
        made = InputCopy(name, tensor, tensor.clone(memory_format=torch.contiguous_format))
        self._copies.append(made)
        return made.copy

    def verdict(self, verdict: Verdict) -> Verdict:
        return Verdict(*(self.copy(f"verdict.{name}", t) for name, t in zip(Verdict._fields, verdict, strict=True)))

    def written(self) -> Tensor:
        """[] int64: bit i is set if NAMES[i] was written to. Does not wait for a GPU."""
        device = self._copies[0].own.device
        found = torch.zeros((), dtype=torch.int64, device=device)
        for each in self._copies:
            if device.type == "cpu" and each.own.dtype is each.copy.dtype and torch.equal(each.own, each.copy):
                continue
            found = found | each.differs().long() << NAMES.index(each.name)
        return found

    def _relay(self, relay: Relay) -> Relay:
        """Writes the latest published values into the copy only: the engine's relay is not changed."""
        own = shallow_copy(relay)
        own.length, own.last = relay.length.clone(), relay.last.clone()
        own.settle()
        own.length, own.last = self.copy("relay.length", own.length), self.copy("relay.last", own.last)
        fields = zip(SamplingRows._fields, relay.sampling, strict=True)
        own.sampling = SamplingRows(*(self.copy(f"relay.sampling.{name}", tensor) for name, tensor in fields))
        return own
