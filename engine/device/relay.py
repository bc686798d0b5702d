"""Per-row values that one launched step leaves on the device for the next.

Always on, at every lag: a step's inputs never come from the host's knowledge of earlier output. Row 0 is padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.device.staging import floats, integers
from specmatrix.kernels.gather_rows import gather, scatter


class DraftStateSpec(NamedTuple):
    """One tensor that a drafter carries from one round to the next: its name, its shape per request, its dtype.

    distinct: a row's initial value is 0, 1, 2 ... along the last axis instead of zeros. Padding rows draft from it, and
    equal siblings would all be accepted.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    distinct: bool = False

    def nothing(self, device: torch.device) -> Tensor:
        """A row's initial value: [1, *shape]."""
        empty = torch.zeros(1, *self.shape, dtype=self.dtype, device=device)
        return empty + torch.arange(self.shape[-1], device=device) if self.distinct else empty


# A batch's carried tensors by name, each [B, *shape].
DraftState: TypeAlias = Mapping[str, Tensor]


class Relay:
    """Device buffers indexed by request row.

    length [R]: tokens in the target's KV. last [R, 1]: the bonus token, known but not in KV. limit [R]: the most tokens
    that the request's prompt and output may have; it and sampling parameters are uploaded once per residence. budget
    [1]: the most drafts that all rows of the next round verify together, in engines that have a budget.
    carried: a buffer [R, *shape] per DraftStateSpec of the drafter, reset at the start of a request's residence. The
    latest `publish` reaches the buffers only when the rows change, which is rare.
    """

    def __init__(self, rows: int, carries: tuple[DraftStateSpec, ...], device: torch.device) -> None:
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.last = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.limit = torch.zeros_like(self.length)
        self.budget = torch.zeros(1, dtype=torch.int64, device=device)
        self._nothing = {c.name: c.nothing(device) for c in carries}
        self.carried = {name: empty.repeat(rows, *[1] * (empty.dim() - 1)) for name, empty in self._nothing.items()}
        self.sampling = SamplingRows(
            torch.zeros(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.ones(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        self._latest: tuple[Tensor, Tensor, Tensor] | None = None

    def admit(self, rows: Sequence[PlanRow]) -> None:
        """Upload the sampling parameters and limits of requests that begin a residence, and reset their rows' carried
        state."""
        new = [(row.row, *row.admit) for row in rows if row.admit is not None]
        if not new:
            return
        device = self.length.device
        at = integers([row for row, *_ in new], device)
        self.forget(at)
        columns = (
            floats([p.temperature for _, p, _, _ in new], device),
            integers([max(0, p.top_k) for _, p, _, _ in new], device),
            floats([p.top_p for _, p, _, _ in new], device),
            integers([seed for _, _, seed, _ in new], device),
            integers([limit for *_, limit in new], device),
        )
        for field, column in zip((*self.sampling, self.limit), columns, strict=True):
            field.index_copy_(0, at, column)

    def publish(self, rows: Tensor, length: Tensor, last: Tensor) -> None:
        """rows [B], length [B], last [B, 1], all int64; they must not be written to afterwards."""
        if self._latest is not None and self._latest[0] is not rows:
            self._enter(*self._latest)
        self._latest = rows, length, last

    def settle(self) -> None:
        """Write the latest published values to the buffers."""
        if self._latest is not None:
            self._enter(*self._latest)
            self._latest = None

    def drop(self) -> None:
        """Discard the latest published values: they were never computed."""
        self._latest = None

    def lengths_and_roots(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """KV lengths [B] and bonus tokens [B, 1] of the batch."""
        if self._latest is not None:
            if self._latest[0] is rows:
                return self._latest[1:]
            self.settle()
        return gather(self.length, rows), gather(self.last, rows)

    def _enter(self, rows: Tensor, length: Tensor, last: Tensor) -> None:
        scatter(self.length, rows, length)
        scatter(self.last, rows, last)

    def stash(self, rows: Tensor, state: DraftState) -> None:
        """Store all tensors of the batch's drafter state."""
        for name, buffer in self.carried.items():
            scatter(buffer, rows, state[name])

    def forget(self, rows: Tensor) -> None:
        """Reset the rows' carried state, left by earlier requests."""
        for name, buffer in self.carried.items():
            buffer.index_copy_(0, rows, self._nothing[name].expand(len(rows), *buffer.shape[1:]))

    def state(self, rows: Tensor) -> DraftState:
        """The drafter's state of the batch."""
        return {name: gather(buffer, rows) for name, buffer in self.carried.items()}

    def sampling_of(self, rows: Tensor) -> SamplingRows:
        """The sampling parameters of the batch."""
        return SamplingRows(*(gather(field, rows) for field in self.sampling))
