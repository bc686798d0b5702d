"""What every operation must hold, whatever its backend. Each check raises KernelError with the case's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.core.errors import KernelError
from kernels.case import Arguments, Case, Kernel

GUARD = 64  # elements in front of and behind an argument


def agreement(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """The fast form gives what the definition gives."""
    _compare(kernel, case, _run(kernel, case.arguments(device)), _expected(kernel, case), "the reference")


def poisoned(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """No result depends on memory that nobody wrote: torch.empty hands out NaN here."""
    with _poisoned_memory():
        got = _run(kernel, case.arguments(device))
    _compare(kernel, case, got, _expected(kernel, case), "the reference, with new memory poisoned")


def canaries(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """Nothing outside an argument is written, and nothing inside but what the operation declares."""
    arguments = case.arguments(device)
    fenced = [_fence(a) if isinstance(a, Tensor) else (a, a) for a in arguments]
    _run(kernel, tuple(inner for inner, _ in fenced))
    for place, (argument, (inner, outer)) in enumerate(zip(arguments, fenced, strict=True)):
        if not isinstance(argument, Tensor):
            continue
        if not _same(_guards(outer), torch.full_like(_guards(outer), _canary(argument.dtype))):
            raise KernelError(f"{kernel}: memory around argument {place} was written, case {case}")
        if place not in kernel.writes and not _same(inner, argument):
            raise KernelError(f"{kernel}: argument {place} was changed, case {case}")


def repeatable(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """Two runs agree bit by bit."""
    first, second = (_run(kernel, case.arguments(device)) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        if not _same(one, two):
            raise KernelError(f"{kernel}: two runs differ, case {case}")


def _run(kernel: Kernel, arguments: Arguments) -> list[Tensor]:
    """Results: what is returned, then what is written."""
    return _results(kernel.fast(*arguments), kernel, arguments)


def _expected(kernel: Kernel, case: Case) -> list[Tensor]:
    arguments = case.arguments()
    return _results(kernel.reference(*arguments), kernel, arguments)


def _results(returned: object, kernel: Kernel, arguments: Arguments) -> list[Tensor]:
    parts = returned if isinstance(returned, tuple) else (returned,)
    found = [part.cpu() for part in parts if isinstance(part, Tensor)]
    return found + [arguments[place].cpu() for place in kernel.writes]


def _compare(kernel: Kernel, case: Case, got: list[Tensor], wanted: list[Tensor], what: str) -> None:
    bound = 0.0 if kernel.bound is None else kernel.bound(case.arguments())
    for place, (one, two) in enumerate(zip(got, wanted, strict=True)):
        where = f"{kernel}: result {place}, case {case}"
        if one.shape != two.shape or one.dtype != two.dtype:
            raise KernelError(f"{where} is {one.dtype} {list(one.shape)}, must be {two.dtype} {list(two.shape)}")
        if not one.is_floating_point() or kernel.bound is None:
            if not _same(one, two):
                raise KernelError(f"{where} differs from {what}")
            continue
        off = (one.double() - two.double()).abs().max() if one.numel() else torch.zeros(())
        if not float(off) <= bound:
            raise KernelError(f"{where} is off by {float(off):.3g} from {what}, bound {bound:.3g} ({kernel.why})")


def _same(one: Tensor, two: Tensor) -> bool:
    """Equal, NaN being equal to NaN."""
    if one.is_floating_point():
        return bool(torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num()))
    return torch.equal(one, two)


def _canary(dtype: torch.dtype) -> float | bool:
    return True if dtype is torch.bool else 113 if not dtype.is_floating_point else 113.25


def _fence(argument: Tensor) -> tuple[Tensor, Tensor]:
    """A contiguous copy in the middle of a larger buffer, and the buffer."""
    outer = torch.full((argument.numel() + 2 * GUARD,), _canary(argument.dtype), dtype=argument.dtype).to(
        argument.device
    )
    inner = outer[GUARD : GUARD + argument.numel()].view(argument.shape)
    inner.copy_(argument)
    return inner, outer


def _guards(outer: Tensor) -> Tensor:
    return torch.cat((outer[:GUARD], outer[-GUARD:]))


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """torch fills new memory with NaN (integers: their largest value) in its deterministic mode."""
    mode = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode)
