"""What a guarded drafter is handed: copies, so that what it writes into them reaches nobody else.

Without them a drafter that fills `batch.rows` would fill the tensors that rounds and engines share.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.spec.drafter import Verdict

BATCH: Final = ("rows", "start", "root", "slots", "lengths", "generations", "positions", "write")
# Everything that is lent, by the name that a drafter's author knows.
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
    """One tensor: the engine's, which nobody writes to while it is lent, and the drafter's copy."""

    name: str
    own: Tensor
    lent: Tensor

    def differs(self) -> Tensor:
        """[] bool, on the device; the host knows other shapes or types."""
        if self.own.shape != self.lent.shape or self.own.dtype is not self.lent.dtype:
            return torch.ones((), dtype=torch.bool, device=self.own.device)
        return (self.own != self.lent).any()


class InputCopies:
    """The loans of one step. batch: the drafter's, with a relay that shares only what the drafter carries."""

    def __init__(self, batch: StepBatch) -> None:
        self._loans: list[InputCopy] = []
        given = {name: getattr(batch, name) for name in BATCH}
        lent = {name: self.lend(f"batch.{name}", tensor) for name, tensor in given.items() if tensor is not None}
        positions, write = lent.pop("positions"), lent.pop("write")
        relay = None if batch.relay is None else self._relay(batch.relay)
        self.batch = replace(batch, relay=relay, **lent)
        self.batch.positions, self.batch.write = positions, write

    def lend(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of an engine's tensor, which `written` compares with it. name: one of NAMES."""
        loan = InputCopy(name, tensor, tensor.clone(memory_format=torch.contiguous_format))
        self._loans.append(loan)
        return loan.lent

    def verdict(self, verdict: Verdict) -> Verdict:
        return Verdict(*(self.lend(f"verdict.{name}", t) for name, t in zip(Verdict._fields, verdict, strict=True)))

    def written(self) -> Tensor:
        """[] int64: bit i set where NAMES[i] was written to. Waits for no device; a CPU sorts out the usual case."""
        device = self._loans[0].own.device
        told = torch.zeros((), dtype=torch.int64, device=device)
        for loan in self._loans:
            if device.type == "cpu" and loan.own.dtype is loan.lent.dtype and torch.equal(loan.own, loan.lent):
                continue
            told = told | loan.differs().long() << NAMES.index(loan.name)
        return told

    def _relay(self, relay: Relay) -> Relay:
        """What was published last is entered in the copy alone: the engine's relay stays as it is."""
        own = copy(relay)
        own.length, own.last = relay.length.clone(), relay.last.clone()
        own.settle()
        own.length, own.last = self.lend("relay.length", own.length), self.lend("relay.last", own.last)
        fields = zip(SamplingRows._fields, relay.sampling, strict=True)
        own.sampling = SamplingRows(*(self.lend(f"relay.sampling.{name}", tensor) for name, tensor in fields))
        return own
