"""What kills mutants: which unit tests are nearest, which gates a module belongs to, and what a changed kill is."""

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.faults.fault import catalogue
from specmatrix.matrix.faults.plant import CellVerdict, Trial
from tools.mutants import judging
from tools.mutants.__main__ import status
from tools.mutants.judging import MAX_FAULTS, Judge, Outcome, difference, gates_of, unit_tests_of
from tools.mutants.mutations import Mutations

UNIT = "tests/registered/cpu/unit"
MUTANT = Mutations("matrix/gates/leaks.py", "def judge(left):\n    return left > 0\n")[0]


def test_tests_that_import_a_module_run_first_then_the_nearest_then_its_package():
    importing, nearest, package = unit_tests_of("matrix/oracles/adaptive.py")
    assert (nearest, package) == ((f"{UNIT}/matrix/oracles",), (f"{UNIT}/matrix",))
    assert f"{UNIT}/matrix/oracles/test_adaptive.py" in importing
    assert f"{UNIT}/ci/test_suspects.py" in unit_tests_of("matrix/run/executed_lines.py")[0], "of another package"
    assert f"{UNIT}/matrix/gates/test_ledger.py" in unit_tests_of("matrix/oracles/ledger.py")[0], "of its gate"
    assert unit_tests_of("engine/core/absent/deeper/one.py") == ((f"{UNIT}/engine/core",), (f"{UNIT}/engine",))


def test_a_module_belongs_to_the_gates_that_import_it():
    assert gates_of("matrix/gates/leaks.py") == {"leaks"}
    assert gates_of("matrix/oracles/ledger.py") >= {"ledger"}
    assert gates_of("matrix/oracles/page_trie.py") >= {"schedule"}
    assert gates_of("reports/stats.py") == set()


def verdict(gates, error=None):
    return CellVerdict("a", gates, error, 0.1)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([verdict({"leaks": ("FAIL", "2 left")})], ""),
        ([verdict({"leaks": ("PASS", "")})], "leaks of a is PASS, not FAIL"),
        ([verdict({})], "leaks of a is gone, not FAIL"),
        ([verdict({"leaks": ("FAIL", ""), "schedule": ("FAIL", "")})], "schedule of a is FAIL, not gone"),
        ([verdict({"leaks": ("FAIL", "")}, "KeyError: it")], "a crashes"),
        ([], "0 of 1 cells end"),
    ],
)
def test_a_change_of_the_kill_matrix_is_a_gate_that_sees_a_fault_differently(second, told):
    assert difference([verdict({"leaks": ("FAIL", "1 left")})], second) == told


def test_a_mutant_meets_a_few_faults_of_its_own_gates_and_each_runs_once_without_it(monkeypatch):
    calls = []
    monkeypatch.setattr(judging, "trial", lambda change, *_, processes: calls.append(change) or Trial((), None))
    judge = Judge(0)
    assert judge.changed_fault(MUTANT._replace(path="reports/stats.py")) == "" and not calls
    assert judge.changed_fault(MUTANT._replace(path="matrix/gates/gate.py")) == ""
    own = {one.patch for one in catalogue()}
    assert MAX_FAULTS < len(calls) <= 2 * MAX_FAULTS and sum(change in own for change in calls) == len(calls) / 2
    calls.clear()
    judge.changed_fault(MUTANT._replace(path="matrix/gates/gate.py"))
    assert calls and not own & {*calls}


def outcome_of(monkeypatch, path, cell=None, test="", fault=""):
    """The outcome of a mutant that these kill."""
    judge = Judge(0, cells=())
    monkeypatch.setattr(Judge, "killed_by_cell", lambda self, mutant: cell)
    monkeypatch.setattr(Judge, "failed_test", lambda self, mutant, places: test if mutant else "")
    monkeypatch.setattr(Judge, "changed_fault", lambda self, mutant: fault)
    [found] = judge.outcomes([MUTANT._replace(path=path)], 1)
    return found.by, found.how


def test_cells_and_tests_judge_the_engine_and_tests_and_the_kill_matrix_what_judges(monkeypatch):
    judged, engine = "matrix/gates/leaks.py", "engine/loop.py"
    assert outcome_of(monkeypatch, judged, Outcome("x", "cells"), "a::test", "f: leaks") == ("tests", "a::test")
    assert outcome_of(monkeypatch, judged, None, "", "f: leaks") == ("faults", "f: leaks")
    assert outcome_of(monkeypatch, engine, Outcome("x", "cells", "leaks"), "a::test") == ("cells", "leaks")
    assert outcome_of(monkeypatch, engine, None, "a::test") == ("tests", "a::test")
    assert outcome_of(monkeypatch, engine, None, "", "f: leaks") == ("", "")


def test_tests_that_fail_without_a_mutant_are_named(monkeypatch):
    monkeypatch.setattr(Judge, "failed_test", lambda self, mutant, places: "" if mutant else "a::test")
    monkeypatch.setattr(Judge, "changed_fault", lambda self, mutant: "")
    with pytest.raises(ConfigError, match="a unit test fails without any mutant: a::test"):
        [*Judge(0, cells=()).outcomes([MUTANT], 1)]


def test_the_status_is_of_the_goals(capsys):
    cells = [Outcome(f"engine/loop.py:1#{number}", "cells") for number in range(99)]
    assert status([*cells, Outcome("engine/loop.py:1#99")]) == 0
    assert status([Outcome(one.id) for one in cells]) == 1
    assert status([]) == 0
    capsys.readouterr()
    assert status([Outcome("matrix/gates/leaks.py:1#0", "tests")]) == 0
    assert "by cells" not in capsys.readouterr().out
