"""The verb at fault and the traceback of an exception."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from specmatrix import HOME
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.errors import LedgerError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.run.verb import LONGEST, VERBS, traceback_of, verb_of
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.reports.store import cell_from_json, cell_to_json

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def raised(call) -> BaseException:
    with pytest.raises(BaseException) as found:
        call()
    return found.value


def test_the_innermost_verb_of_the_ledger_is_named():
    ledger = Ledger(4, 4)
    ledger.open(1)
    assert verb_of(raised(lambda: ledger.settle(1, 1))) == "settle"
    assert verb_of(raised(lambda: ledger.donate(1, 9))) == "donate"


def test_code_outside_the_engine_is_no_verb():
    assert verb_of(raised(lambda: [][0])) == ""
    assert verb_of(ValueError("never raised")) == ""


def test_every_verb_is_a_function_of_its_file():
    for path, verbs in VERBS.items():
        tree = ast.parse((HOME / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(verbs) <= defined, path


class Unplugged(ReferenceSubject):
    """Its drafter raises in the second round."""

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        step = engine.llm.loop.executor.plain
        hooks, calls = step.drafter, []

        def propose(*given: object) -> object:
            calls.append(given)
            if len(calls) > 1:
                raise LedgerError("a wire came loose")
            return hooks.propose(*given)

        step.drafter = SimpleNamespace(prime=hooks.prime, absorb=hooks.absorb, propose=propose)
        return engine


def test_a_crashed_cell_carries_its_verb_and_the_whole_traceback():
    cell = Runner(Unplugged(), seed=0).run_cell(Cell.from_id("eagle3"))
    assert (cell.state, cell.verb) == ("FAIL", "propose")
    assert cell.traceback.startswith("Traceback (most recent call last):\n")
    assert cell.traceback.endswith("LedgerError: a wire came loose\n")
    for file in ("matrix/run/runner.py", "engine/loop.py", "engine/device_step.py", Path(__file__).name):
        assert file in cell.traceback
    assert f'"{HOME}' not in cell.traceback.replace(f'"{HOME}/tests', "")
    assert cell_from_json(cell_to_json(cell)) == cell


def test_a_traceback_keeps_its_causes_and_of_a_long_one_the_end():
    def chained() -> None:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise KeyError("x" * 3 * LONGEST) from cause

    assert "the cause" in traceback_of(raised(lambda: exec("raise KeyError from ValueError('the cause')")))
    text = traceback_of(raised(chained))
    assert len(text) == LONGEST and text.startswith("…") and text.endswith("x'\n")
