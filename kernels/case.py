"""A test case of an operation, and an entry of the kernel registry."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Arguments = tuple[Any, ...]
# Largest allowed absolute error of a result: one for all elements, or one per element.
Bound = float | Tensor


@dataclass(frozen=True)
class Case:
    """One set of arguments: `make(generator)` builds them on the CPU, deterministically.

    size: small cases also run in Triton's interpreter; large ones exceed int32 indexing and are fast enough on a GPU
    only.
    """

    name: str
    make: Callable[[torch.Generator], Arguments]
    size: Literal["small", "medium", "large"] = "small"

    def arguments(self, device: torch.device | str = "cpu") -> Arguments:
        """New arguments on `device`."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return tuple(_moved(a, device) if isinstance(a, Tensor) else a for a in self.make(generator))

    def __str__(self) -> str:
        return self.name


def _moved(argument: Tensor, device: torch.device | str) -> Tensor:
    """A copy on `device` that keeps the strides of a view."""
    if argument.is_contiguous() or argument._base is None:
        return argument.to(device)
    base = argument._base.to(device)
    return base.as_strided(argument.size(), argument.stride(), argument.storage_offset())


@dataclass(frozen=True)
class Kernel:
    """One operation: on every backend, `fast` must agree with `reference` in every case.

    Both take a case's arguments and return a tensor, a tuple of tensors, or None. writes: indices of the arguments that
    they modify, which count as results. bound: largest absolute error of floating-point results, from the arguments and
    the reference's results (`kernels.error_bounds`), None where results must be equal; why: its justification.
    parts: for operations whose Triton kernel is batch-invariant, other calls for some rows: (arguments, result rows).
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
