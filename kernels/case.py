"""The shape of a test case and of a row of the registry."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Arguments = tuple[Any, ...]
# How far a result may be off: all of it alike, or number by number.
Bound = float | Tensor


@dataclass(frozen=True)
class Case:
    """One set of arguments: `make(generator)` builds them on the CPU, the same ones every time.

    size: small cases run in Triton's interpreter too; large ones hold more elements than an int32 counts, so that only
    a GPU is quick enough for them.
    """

    name: str
    make: Callable[[torch.Generator], Arguments]
    size: Literal["small", "medium", "large"] = "small"

    def arguments(self, device: torch.device | str = "cpu") -> Arguments:
        """Fresh arguments on `device`."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return tuple(_moved(a, device) if isinstance(a, Tensor) else a for a in self.make(generator))

    def __str__(self) -> str:
        return self.name


def _moved(argument: Tensor, device: torch.device | str) -> Tensor:
    """On `device` with the same strides, which a plain copy of a view would lose."""
    if argument.is_contiguous() or argument._base is None:
        return argument.to(device)
    base = argument._base.to(device)
    return base.as_strided(argument.size(), argument.stride(), argument.storage_offset())


@dataclass(frozen=True)
class Kernel:
    """One operation: `fast` must give what `reference` gives, for every case, in each of its forms.

    Both take a case's arguments and return a tensor, several, or None. writes: places of the arguments that they
    change, which count as results. bound: how far floating results may be off for given arguments and the reference's
    results (`kernels.error_bounds`), None where results must be equal; why: where the bound comes from. parts: other
    ways to compute some rows, for operations whose Triton form is batch-invariant: (arguments, rows of the result).
    """

    name: str
    fast: Callable[..., Any]
    reference: Callable[..., Any]
    cases: Sequence[Case]
    writes: tuple[int, ...] = ()
    bound: Callable[[Arguments, Sequence[Tensor]], Bound | tuple[Bound, ...]] | None = None
    why: str = "integers and copies"
    parts: Callable[[Arguments], Iterator[tuple[Arguments, Tensor]]] | None = None

    def __str__(self) -> str:
        return self.name
