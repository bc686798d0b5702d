"""The laws of kernels as a gate: they pass unchanged, fail where a fault breaks one, and are not measured without
triton."""

import pytest

from specmatrix.kernels import check
from specmatrix.kernels.registry import KERNELS
from specmatrix.matrix.faults import kernels as laws
from specmatrix.matrix.faults.fault import catalogue
from tests.support.refusals import refusal


def verdict(name: str, tier: str = "cpu") -> tuple[str, str]:
    (line,) = laws.check_operations([f"kernel:{name}"], tier)
    assert (line["cell"], line["error"]) == (f"kernel:{name}", None) and line["seconds"] >= 0
    state, message = line["gates"]["kernels"]
    return state, message


def test_an_operation_keeps_the_laws_and_an_unknown_one_lists_the_known_ones(monkeypatch):
    assert verdict("store_kv") == ("PASS", "")
    text = "operation 'store' is unknown; it must be one of store_kv, compact_kv, "
    assert refusal(verdict, "store").startswith(text)
    monkeypatch.setattr(laws, "find_spec", lambda name: None)
    sentence = "checking kernels needs triton; install specmatrix with its extra `kernels`"
    assert verdict("store_kv") == ("NOT MEASURED", sentence)


def test_the_catalogue_names_operations_that_exist():
    known = {kernel.name for kernel in KERNELS}
    assert {name for fault in catalogue() for name in fault.operations} <= known


def test_reading_where_nothing_is_breaks_a_law_and_other_errors_are_crashes(monkeypatch):
    error = RuntimeError("Triton Error [CUDA]: an illegal\n memory access was encountered")

    def run(*given: object) -> None:
        raise error

    monkeypatch.setattr(check, "at_once", run)
    assert verdict("store_kv") == ("FAIL", "store_kv: Triton Error [CUDA]: an illegal memory access was encountered")
    error = RuntimeError("out of shared memory")
    with pytest.raises(RuntimeError, match="out of shared memory"):
        verdict("store_kv")
