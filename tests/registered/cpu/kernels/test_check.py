"""The checks themselves: each catches the fault that it is there for."""

from __future__ import annotations

import pytest
import torch

from engine.core.errors import KernelError
from kernels import check
from kernels.case import Case, Kernel

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

CASE = Case("ones", lambda g: (torch.ones(4), torch.ones(4)))


def double(a, b):
    return a * 2


def kernel(fast, **changes: object):
    return Kernel("double", fast, double, (CASE,), **changes)


def test_agreement_is_exact_without_a_bound():
    check.agreement(kernel(double), CASE)
    with pytest.raises(KernelError, match="double: result 0, case ones differs from the reference"):
        check.agreement(kernel(lambda a, b: a * 2 + 1e-6), CASE)


def test_agreement_within_a_bound():
    bounded = {"bound": lambda _: 1e-3, "why": "one rounding"}
    check.agreement(kernel(lambda a, b: a * 2 + 1e-4, **bounded), CASE)
    with pytest.raises(KernelError, match=r"is off by 0.01 from the reference, bound 0.001 \(one rounding\)"):
        check.agreement(kernel(lambda a, b: a * 2 + 1e-2, **bounded), CASE)
    with pytest.raises(KernelError, match="is off by nan from the reference"):
        check.agreement(kernel(lambda a, b: a * float("nan"), **bounded), CASE)


def test_agreement_of_shapes_and_dtypes():
    with pytest.raises(KernelError, match=r"is torch.float64 \[4\], must be torch.float32 \[4\]"):
        check.agreement(kernel(lambda a, b: a.double() * 2), CASE)
    with pytest.raises(KernelError, match=r"is torch.float32 \[3\], must be torch.float32 \[4\]"):
        check.agreement(kernel(lambda a, b: a[1:] * 2), CASE)


def test_unwritten_memory_is_seen():
    def forgets_the_last(a, b):
        out = torch.empty(4)
        out[:3] = a[:3] * 2
        return out

    with pytest.raises(KernelError, match="differs from the reference, with new memory poisoned"):
        check.poisoned(kernel(forgets_the_last), CASE)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_changed_argument_is_seen():
    def in_place(a, b):
        return b.mul_(2)

    with pytest.raises(KernelError, match="double: argument 1 was changed, case ones"):
        check.canaries(kernel(in_place), CASE)
    check.canaries(kernel(in_place, writes=(1,)), CASE)


@pytest.mark.parametrize("place", [-1, 4])
def test_a_write_beside_an_argument_is_seen(place):
    def beside(a, b):
        a.as_strided((1,), (1,), a.storage_offset() + place).zero_()
        return a * 2

    with pytest.raises(KernelError, match="double: memory around argument 0 was written, case ones"):
        check.canaries(kernel(beside), CASE)


def test_a_different_second_run_is_seen():
    calls = []

    def drifts(a, b):
        calls.append(1)
        return a * len(calls)

    with pytest.raises(KernelError, match="double: two runs differ, case ones"):
        check.repeatable(kernel(drifts), CASE)


def test_cases_give_the_same_arguments_every_time():
    case = Case("random", lambda g: (torch.randn(3, generator=g), 7))
    assert torch.equal(case.arguments()[0], case.arguments()[0])
    assert case.arguments()[1] == 7
