"""The shape of a test case and of a row of the registry."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One set of arguments: `make(generator)` builds them on the CPU, the same ones every time."""

    name: str
    make: Callable[[torch.Generator], Arguments]

    def arguments(self, device: torch.device | str = "cpu") -> Arguments:
        """Fresh arguments on `device`."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return tuple(a.to(device) if isinstance(a, Tensor) else a for a in self.make(generator))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Kernel:
    """One operation: `fast` must give what `reference` gives, for every case.

    Both take a case's arguments and return a tensor, several, or None. writes: places of the arguments that they
    change, which count as results. bound: largest absolute difference of floating results for given arguments, None
    where results must be equal; why: where the bound comes from.
    """

    name: str
    fast: Callable[..., Any]
    reference: Callable[..., Any]
    cases: Sequence[Case]
    writes: tuple[int, ...] = ()
    bound: Callable[[Arguments], float] | None = None
    why: str = "integers and copies"

    def __str__(self) -> str:
        return self.name
