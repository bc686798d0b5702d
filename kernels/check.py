"""The properties that every operation must have on every backend. A failed check raises KernelError with the case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature

import torch
from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels.case import Arguments, Case, Kernel

GUARD = 64  # elements before and after an argument
# Cycles for which a GPU is kept busy before an operation: two milliseconds, in which even a busy host enqueues all of
# its launches unless it still has to compile them.
PAUSE = 4_000_000
# Largest ratio of an error bound to the result that it bounds, both as root mean squares.
MAX_RELATIVE_BOUND = 0.5


def agreement(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """The fast implementation agrees with the reference."""
    _compare(kernel, case, _run(kernel, case.arguments(device)), _expected(kernel, case), "the reference")


def poisoned(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """No result depends on uninitialised memory: torch.empty returns NaN here."""
    with _poisoned_memory():
        got = _run(kernel, case.arguments(device))
    _compare(kernel, case, got, _expected(kernel, case), "the reference, with new memory poisoned")


def canaries(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """The operation writes neither outside its arguments nor into arguments that it does not declare as written."""
    _guarded(kernel, case, device)


def at_once(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """The three checks above and `repeatable` in two runs, the second with the arguments' original memory layout."""
    with _poisoned_memory():
        got = _guarded(kernel, case, device)
    _compare(kernel, case, got, _expected(kernel, case), "the reference, with new memory poisoned")
    _same_again(kernel, case, got, _run(kernel, case.arguments(device)))


def _guarded(kernel: Kernel, case: Case, device: str) -> list[Tensor]:
    """The results of a run whose arguments are surrounded by canaries, which are verified afterwards."""
    arguments = case.arguments(device)
    fenced = [_fence(a) if isinstance(a, Tensor) else (a, a) for a in arguments]
    results = _run(kernel, tuple(inner for inner, _ in fenced))
    for place, (argument, (inner, outer)) in enumerate(zip(arguments, fenced, strict=True)):
        if not isinstance(argument, Tensor):
            continue
        if not _same(_guards(outer), torch.full_like(_guards(outer), _canary(argument.dtype))):
            raise KernelError(f"{kernel}: memory outside argument {place} was written, case {case}")
        if place not in kernel.writes and not _same(inner, argument):
            raise KernelError(f"{kernel}: read-only argument {place} was modified, case {case}")
    return results


def repeatable(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """Two runs are bitwise identical."""
    first, second = (_run(kernel, case.arguments(device)) for _ in range(2))
    _same_again(kernel, case, first, second)


def _same_again(kernel: Kernel, case: Case, first: list[Tensor], second: list[Tensor]) -> None:
    for one, two in zip(first, second, strict=True):
        if not _same(one, two):
            raise KernelError(f"{kernel}: two runs differ, case {case}")


def strided(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """A non-contiguous argument is either rejected by name or read correctly."""
    wanted = _expected(kernel, case)
    for place, name in enumerate(signature(kernel.reference).parameters):
        arguments = list(case.arguments(device))
        if place >= len(arguments) or not isinstance(arguments[place], Tensor) or arguments[place].numel() < 2:
            continue
        arguments[place] = _apart(arguments[place])
        try:
            got = _run(kernel, tuple(arguments))
        except KernelError as error:
            if f": {name} is not contiguous" not in str(error):
                raise
            continue
        _compare(kernel, case, got, wanted, f"the reference, with {name} not contiguous")


def invariant(kernel: Kernel, case: Case, device: str = "cpu") -> None:
    """KernelError unless each result row is bitwise identical whatever else is computed in the same call."""
    assert kernel.parts is not None
    whole = _run(kernel, case.arguments(device))
    for number, (arguments, rows) in enumerate(kernel.parts(case.arguments(device))):
        for place, (part, result) in enumerate(zip(_run(kernel, arguments), whole, strict=True)):
            if not _same(part, result[rows]):
                off = int((part != result[rows]).reshape(len(rows), -1).any(1).sum())
                raise KernelError(
                    f"{kernel}: {off} of {len(rows)} rows of result {place} depend on the rest of the batch, "
                    f"case {case}, part {number}"
                )


def late(kernel: Kernel, case: Case) -> None:
    """The operation waits for its predecessor: each argument in turn is zeros at the launch, and is written late by the
    preceding kernel. GPU only."""
    # Imported lazily: it needs triton, which may be missing on a CPU.
    from specmatrix.kernels.late_writer import write_late

    wanted = _expected(kernel, case)
    _run(kernel, case.arguments("cuda"))  # compiles what is launched below
    for place, argument in enumerate(case.arguments("cuda")):
        if not isinstance(argument, Tensor) or not argument.numel():
            continue
        arguments = case.arguments("cuda")
        target = _storage(arguments[place])
        source = target.clone()
        target.zero_()
        torch.cuda.synchronize()
        write_late(source, target)
        got = _results(kernel.fast(*arguments), kernel, arguments)
        _compare(kernel, case, got, wanted, f"the reference, with argument {place} written late")


def _storage(argument: Tensor) -> Tensor:
    """The memory that a tensor is a view of, uint8 [size]."""
    return torch.empty(0, dtype=torch.uint8, device=argument.device).set_(argument.untyped_storage())


def _apart(argument: Tensor) -> Tensor:
    """A view with the same values at stride 2, canaries in between."""
    wide = torch.full((*argument.shape, 2), _canary(argument.dtype), dtype=argument.dtype, device=argument.device)
    wide[..., 0] = argument
    return wide[..., 0]


def _run(kernel: Kernel, arguments: Arguments) -> list[Tensor]:
    """Run the operation. Returns its results: returned tensors, then written arguments. On a GPU all launches are
    enqueued before execution starts, as in a CUDA graph, to expose kernels that do not wait for the previous one."""
    if any(isinstance(a, Tensor) and a.is_cuda for a in arguments):
        torch.cuda._sleep(PAUSE)
    return _results(kernel.fast(*arguments), kernel, arguments)


def _expected(kernel: Kernel, case: Case) -> list[Tensor]:
    arguments = case.arguments()
    return _results(kernel.reference(*arguments), kernel, arguments)


def _results(returned: object, kernel: Kernel, arguments: Arguments) -> list[Tensor]:
    parts = returned if isinstance(returned, tuple) else (returned,)
    found = [part.cpu() for part in parts if isinstance(part, Tensor)]
    return found + [arguments[place].cpu() for place in kernel.writes]


def _compare(kernel: Kernel, case: Case, got: list[Tensor], wanted: list[Tensor], what: str) -> None:
    found = 0.0 if kernel.bound is None else kernel.bound(case.arguments(), wanted)
    bounds = found if isinstance(found, tuple) else (found,) * len(got)
    for place, (one, two, bound) in enumerate(zip(got, wanted, bounds, strict=True)):
        where = f"{kernel}: result {place}, case {case}"
        if one.shape != two.shape or one.dtype != two.dtype:
            raise KernelError(f"{where} is {one.dtype} {list(one.shape)}, must be {two.dtype} {list(two.shape)}")
        if not one.is_floating_point() or kernel.bound is None:
            if not _same(one, two):
                raise KernelError(f"{where} differs from {what}")
            continue
        if one.numel():
            _within(where, one.double(), two.double(), torch.as_tensor(bound, dtype=torch.float64), what, kernel.why)


def _within(where: str, one: Tensor, two: Tensor, bound: Tensor, what: str, why: str) -> None:
    """one and two: float64, not empty; bound: of their shape, or a scalar."""
    if bound.square().mean() > (MAX_RELATIVE_BOUND * two.nan_to_num()).square().mean():
        raise KernelError(f"{where} has an error bound above {MAX_RELATIVE_BOUND} of its magnitude, too loose ({why})")
    off = (one - two).abs()
    beyond = torch.where(off <= bound, 0.0, off - bound).nan_to_num(nan=float("inf"))
    if beyond.any():
        worst = beyond.argmax()
        most, allowed = (float(numbers.expand(off.shape).flatten()[worst]) for numbers in (off, bound))
        raise KernelError(f"{where} differs from {what} by {most:.3g}, bound {allowed:.3g} ({why})")


def _same(one: Tensor, two: Tensor) -> bool:
    """torch.equal, with NaN equal to NaN."""
    if one.is_floating_point():
        return bool(torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num()))
    return torch.equal(one, two)


def _canary(dtype: torch.dtype) -> float | bool:
    return True if dtype is torch.bool else 113 if not dtype.is_floating_point else 113.25


def _fence(argument: Tensor) -> tuple[Tensor, Tensor]:
    """A copy, contiguous or transposed like the argument, in the middle of a larger buffer; and that buffer."""
    outer = torch.full((argument.numel() + 2 * GUARD,), _canary(argument.dtype), dtype=argument.dtype).to(
        argument.device
    )
    strides = argument.stride() if argument.dim() == 2 and argument.t().is_contiguous() else None
    inner = outer[GUARD : GUARD + argument.numel()].view(argument.shape)
    if strides is not None:
        inner = inner.as_strided(argument.shape, strides)
    inner.copy_(argument)
    return inner, outer


def _guards(outer: Tensor) -> Tensor:
    return torch.cat((outer[:GUARD], outer[-GUARD:]))


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """In its deterministic mode torch fills new memory with NaN (integers: their largest value)."""
    mode = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode)
