"""The laws of kernels as a gate: they pass unchanged, fail where a fault breaks one, and are not measured without
triton."""

import pytest

from specmatrix.errors import ConfigError
from specmatrix.kernels import check
from specmatrix.kernels.registry import KERNELS
from specmatrix.matrix.faults import kernels as laws
from specmatrix.matrix.faults.command import faults, select
from specmatrix.matrix.faults.loader import catalogue
from specmatrix.reports.gate_numbers import GATES


def verdict(name: str, tier: str = "cpu") -> tuple[str, str]:
    (line,) = laws.check_operations([f"kernel:{name}"], tier)
    assert (line["cell"], line["error"]) == (f"kernel:{name}", None) and line["seconds"] >= 0
    state, message = line["gates"]["kernels"]
    return state, message


def test_an_operation_keeps_the_laws():
    assert verdict("store_kv") == ("PASS", "")


def test_an_unknown_operation_lists_the_known_ones():
    with pytest.raises(ConfigError, match="operation 'store' is unknown; it must be one of store_kv, compact_kv, "):
        verdict("store")


def test_the_catalogue_names_operations_that_exist():
    known = {kernel.name for kernel in KERNELS}
    assert {name for fault in catalogue() for name in fault.operations} <= known


def test_without_triton_nothing_was_measured(monkeypatch):
    monkeypatch.setattr(laws, "find_spec", lambda name: None)
    sentence = "checking kernels needs triton; install specmatrix with its extra `kernels`"
    assert verdict("store_kv") == ("NOT MEASURED", sentence)


def test_reading_where_nothing_is_breaks_a_law_and_other_errors_are_crashes(monkeypatch):
    def fails(words):
        def run(*given: object) -> None:
            raise RuntimeError(words)

        return run

    monkeypatch.setattr(check, "at_once", fails("Triton Error [CUDA]: an illegal\n memory access was encountered"))
    assert verdict("store_kv") == (
        "FAIL",
        "store_kv: Triton Error [CUDA]: an illegal memory access was encountered",
    )
    monkeypatch.setattr(check, "at_once", fails("out of shared memory"))
    with pytest.raises(RuntimeError, match="out of shared memory"):
        verdict("store_kv")


@pytest.mark.nightly
def test_a_kernels_fault_is_seen_in_the_interpreter_and_runs_no_cell_there(capsys):
    (fault,) = select(["kernel-node-for-parent"])
    assert fault.cells and fault in select([], "gpu1")
    assert faults(only=[fault.id]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 fault killed kernels: only killer of kernel-node-for-parent" in text
    assert not [gate for gate in GATES if f"{gate}: only killer" in text]
