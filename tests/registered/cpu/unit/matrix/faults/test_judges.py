"""Mutants of what judges: which unit tests are nearest, which gates a module belongs to, and what a changed kill is."""

import pytest

from specmatrix.matrix.faults import judges, mutants
from specmatrix.matrix.faults.judges import KillChanges, gates_of, imports, unit_tests_of
from specmatrix.matrix.faults.loader import catalogue
from specmatrix.matrix.faults.mutants import Mutations, run_mutants
from specmatrix.matrix.faults.plant import CellVerdict, Trial
from specmatrix.matrix.faults.processes import Processes

UNIT = "tests/registered/cpu/unit"


def test_tests_that_import_a_module_run_first_then_the_nearest_then_its_package():
    assert unit_tests_of("matrix/oracles/adaptive.py")[1:] == ((f"{UNIT}/matrix/oracles",), (f"{UNIT}/matrix",))
    assert f"{UNIT}/matrix/oracles/test_adaptive.py" in unit_tests_of("matrix/oracles/adaptive.py")[0]
    assert f"{UNIT}/ci/test_suspects.py" in unit_tests_of("matrix/run/executed_lines.py")[0], "of another package"
    assert f"{UNIT}/matrix/gates/test_schedule.py" in unit_tests_of("matrix/oracles/work.py")[0]
    assert unit_tests_of("engine/core/absent/deeper/one.py") == ((f"{UNIT}/engine/core",), (f"{UNIT}/engine",))
    assert unit_tests_of("absent/one.py") == ((f"{UNIT}/absent",),)


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("from specmatrix.matrix.gates.session import SessionGate", True),
        ("import specmatrix.matrix.gates.session", True),
        ("from specmatrix.matrix.gates import ledger, session", True),
        ("from specmatrix.matrix.gates import (\n    ledger,\n    session,\n)", True),
        ("from specmatrix.matrix.gates.session_baseline import has_session_baseline", False),
        ("from specmatrix.matrix.gates import ledger\nsession = 1", False),
    ],
)
def test_imports_are_read_from_the_text(text, whether):
    assert imports(text, "matrix/gates/session.py") is whether


def test_a_module_belongs_to_the_gates_that_import_it():
    assert gates_of("matrix/gates/leaks.py") == {"leaks"}
    assert gates_of("matrix/oracles/ledger.py") >= {"ledger", "session"}
    assert gates_of("matrix/oracles/page_trie.py") >= {"schedule"}
    assert gates_of("reports/stats/paired.py") == frozenset()


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"leaks": ("FAIL", "2 left")}, ""),
        ({"leaks": ("PASS", "")}, "leaks of a is PASS, not FAIL"),
        ({}, "leaks of a is gone, not FAIL"),
        ({"leaks": ("FAIL", ""), "schedule": ("FAIL", "")}, "schedule of a is FAIL, not gone"),
        ("KeyError: it", "a crashes"),
        (None, "0 of 1 cells end"),
    ],
)
def test_a_change_of_the_kill_matrix_is_a_gate_that_sees_a_fault_differently(monkeypatch, second, told):
    calls = []

    def trial(change, cells, seed, processes):
        calls.append(change)
        gates = {"leaks": ("FAIL", "1 left")} if len(calls) == 1 or isinstance(second, str) else second
        error = second if isinstance(second, str) and len(calls) > 1 else None
        return Trial(() if gates is None else (CellVerdict("a", gates, error, 0.1),), None)

    monkeypatch.setattr(judges, "trial", trial)
    faults = [one for one in catalogue() if one.expected == ("leaks",) and one.tier == "cpu"][:1]
    skipped = [one for one in catalogue() if one.expected == ("lossless",)][:1]
    changes = KillChanges((*skipped, *faults), [], 0, Processes())
    monkeypatch.setattr(type(faults[0]), "chosen", lambda fault, locked: [])
    mutant = Mutations("matrix/gates/leaks.py", "def judge(left):\n    return left > 0\n")[0]
    assert changes.first("matrix/gates/leaks.py", mutant) == (told and f"{faults[0].id}: {told}")
    assert changes.first("reports/stats/paired.py", mutant) == "" and len(calls) == 2
    changes.first("matrix/gates/leaks.py", mutant)
    assert len(calls) == 3  # the fault alone runs once
    calls.clear()
    monkeypatch.setattr(judges, "trial", lambda change, *rest, processes: calls.append(change) or Trial((), None))
    many = [one for one in catalogue() if "schedule" in one.expected or "lossless" in one.expected]
    assert KillChanges(many, [], 0, Processes()).first("matrix/gates/gate.py", mutant) == ""
    assert len(many) > 30 and 2 * 12 <= len(calls) <= 2 * 24  # once without the mutant, once with it


def test_a_mutant_of_a_judge_meets_unit_tests_and_then_the_kill_matrix(monkeypatch):
    one = Mutations("matrix/gates/leaks.py", "def judge(left):\n    return left > 0\n")[0]

    def outcome(failed, change, tests=True):
        monkeypatch.setattr(mutants, "failed_test", lambda mutant, places, processes: mutant and failed)
        monkeypatch.setattr(KillChanges, "first", lambda self, path, mutant: change)
        [found] = run_mutants([one], [], [], None, 0, 1, tests)
        return found.by, found.how

    assert outcome("test_x.py::test", "f: leaks of a is PASS, not FAIL") == ("tests", "test_x.py::test")
    assert outcome("", "f: leaks of a is PASS, not FAIL") == ("faults", "f: leaks of a is PASS, not FAIL")
    assert outcome("test_x.py::test", "", tests=False) == outcome("", "") == ("", "")
