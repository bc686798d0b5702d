"""The checks themselves: each catches the fault that it exists for."""

from __future__ import annotations

import pytest
import torch

from specmatrix.errors import KernelError
from specmatrix.kernels import batch_invariance, check, preconditions
from specmatrix.kernels.case import Case, Kernel

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
    bounded = {"bound": lambda *_: 1e-3, "why": "one rounding"}
    check.agreement(kernel(lambda a, b: a * 2 + 1e-4, **bounded), CASE)
    with pytest.raises(KernelError, match=r"differs from the reference by 0.01, bound 0.001 \(one rounding\)"):
        check.agreement(kernel(lambda a, b: a * 2 + 1e-2, **bounded), CASE)
    with pytest.raises(KernelError, match="differs from the reference by nan"):
        check.agreement(kernel(lambda a, b: a * float("nan"), **bounded), CASE)


def test_a_bound_that_nothing_could_pass_is_none():
    bounded = {"bound": lambda *_: 1.01, "why": "many roundings"}
    with pytest.raises(KernelError, match=r"has an error bound above 0.5 of its magnitude, .* \(many roundings\)"):
        check.agreement(kernel(lambda a, b: a * 2, **bounded), CASE)


def test_a_bound_for_each_result():
    def two(offset):
        fast, reference = (lambda a, b: (a * 2 + offset[0], a + offset[1])), (lambda a, b: (a * 2, a))
        return Kernel("both", fast, reference, (CASE,), bound=lambda a, wanted: (0.0, 1e-3))

    check.agreement(two((0.0, 1e-4)), CASE)
    with pytest.raises(KernelError, match=r"result 0, case .* from the reference by .*, bound 0 \("):
        check.agreement(two((1e-4, 0.0)), CASE)
    with pytest.raises(KernelError, match=r"result 1, case .* differs from the reference by 0.01, bound 0.001"):
        check.agreement(two((0.0, 1e-2)), CASE)


def test_a_bound_for_each_number():
    bounded = {"bound": lambda *_: torch.tensor([1e-3, 1e-3, 1e-3, 1.0]), "why": "one rounding"}
    check.agreement(kernel(lambda a, b: a * 2 + torch.tensor([0, 0, 1e-4, 0.5]), **bounded), CASE)
    with pytest.raises(KernelError, match=r"differs from the reference by 0.01, bound 0.001 \(one rounding\)"):
        check.agreement(kernel(lambda a, b: a * 2 + torch.tensor([0, 0, 1e-2, 0.5]), **bounded), CASE)


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

    with pytest.raises(KernelError, match="double: read-only argument 1 was modified, case ones"):
        check.canaries(kernel(in_place), CASE)
    check.canaries(kernel(in_place, writes=(1,)), CASE)


@pytest.mark.parametrize("place", [-1, 4])
def test_a_write_beside_an_argument_is_seen(place):
    def beside(a, b):
        a.as_strided((1,), (1,), a.storage_offset() + place).zero_()
        return a * 2

    with pytest.raises(KernelError, match="double: memory outside argument 0 was written, case ones"):
        check.canaries(kernel(beside), CASE)


def test_a_different_second_run_is_seen():
    calls = []

    def drifts(a, b):
        calls.append(1)
        return a * len(calls)

    with pytest.raises(KernelError, match="double: two runs differ, case ones"):
        check.repeatable(kernel(drifts), CASE)


def test_what_all_laws_see_in_two_runs():
    check.at_once(kernel(double), CASE)
    with pytest.raises(KernelError, match="differs from the reference, with new memory poisoned"):
        check.at_once(kernel(lambda a, b: a * 3), CASE)
    with pytest.raises(KernelError, match="memory outside argument 0 was written"):
        check.at_once(kernel(lambda a, b: a.as_strided((1,), (1,), a.storage_offset() - 1).zero_() + a * 2), CASE)
    calls = []

    def drifts(a, b):
        calls.append(1)
        return a * (1 + len(calls))

    with pytest.raises(KernelError, match="two runs differ"):
        check.at_once(kernel(drifts), CASE)


def test_a_strided_argument_is_refused_by_name_or_read_right():
    def reads_memory_in_order(a, b):
        return a.as_strided((4,), (1,)) * 2

    check.strided(kernel(double), CASE)
    with pytest.raises(KernelError, match="differs from the reference, with a not contiguous"):
        check.strided(kernel(reads_memory_in_order), CASE)

    def refuses(a, b):
        preconditions.contiguous("double", a=a)
        return reads_memory_in_order(a, b)

    check.strided(kernel(refuses), CASE)

    def names_another(a, b):
        preconditions.contiguous("double", other=a)
        return a * 2

    with pytest.raises(KernelError, match="double: other is not contiguous"):
        check.strided(kernel(names_another), CASE)


def test_a_row_that_changes_with_its_neighbours_is_seen():
    rows = {"parts": lambda arguments: batch_invariance.of_rows(arguments, (0, 1))}
    check.invariant(kernel(double, **rows), CASE)
    with pytest.raises(KernelError, match="double: 1 of 1 rows of result 0 depend on the rest of the batch, case ones"):
        check.invariant(kernel(lambda a, b: a * len(a), **rows), CASE)


def test_parts_of_attention_hold_one_query_and_more_masked_keys():
    q, cache = torch.zeros(2, 3, 1, 4), torch.zeros(8, 2, 1, 4)
    slots, bias = torch.arange(10).view(2, 5) % 8, torch.zeros(2, 1, 3, 5)
    found = list(batch_invariance.of_queries((q, cache, slots, bias, 1)))
    assert {tuple(rows.tolist()) for _, rows in found} >= {(0,), (2,), (3, 4, 5), (3, 4, 5, 0, 1, 2)}
    assert max(arguments[2].shape[1] for arguments, _ in found) > 256


def test_a_view_keeps_its_strides_on_the_way_to_a_device():
    case = Case("a view", lambda g: (torch.arange(12.0).view(3, 4)[:, 1:3],))
    (moved,) = case.arguments("meta")
    assert moved.stride() == (4, 1)
    assert case.arguments()[0].tolist() == [[1, 2], [5, 6], [9, 10]]
