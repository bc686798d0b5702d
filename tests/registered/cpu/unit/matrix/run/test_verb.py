"""The verb at fault and the traceback of an exception."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from specmatrix import HOME
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.errors import LedgerError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.run.verb import MAX_TRACEBACK, VERBS, traceback_of, verb_of
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.reports.schema import CRASH
from specmatrix.reports.store import cell_from_json, cell_to_json


def raised(call) -> BaseException:
    with pytest.raises(BaseException) as found:
        call()
    return found.value


def test_the_innermost_verb_of_the_ledger_is_named_and_of_code_outside_the_engine_none():
    ledger = Ledger(FullAttention(4, 4))
    ledger.open(1)
    calls = (lambda: ledger.settle(1, 1), lambda: ledger.donate(1, 9), lambda: [][0])
    assert [verb_of(raised(call)) for call in calls] == ["settle", "donate", ""]
    assert verb_of(ValueError("never raised")) == ""


def test_every_verb_is_a_function_of_its_file():
    for path, verbs in VERBS.items():
        tree = ast.parse((HOME / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(verbs) <= defined, path


class Unplugged(ReferenceSubject):
    """Its drafter raises in the second round, or behind the `most`th."""

    most, calls = 1, 0

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        step = engine.llm.loop.executor.plain
        hooks = step.drafter

        def propose(*given: object) -> object:
            self.calls += 1
            if self.calls > self.most:
                raise LedgerError("a wire came loose")
            return hooks.propose(*given)

        step.drafter = SimpleNamespace(prime=hooks.prime, absorb=hooks.absorb, propose=propose)
        return engine


def test_a_crashed_cell_shows_its_verb_traceback_start_counters_and_the_request_that_it_was_at():
    cell = Runner(Unplugged(), seed=0).run_cell(Cell.from_id("eagle3"))
    green = Runner(ReferenceSubject(), seed=0).run_cell(Cell.from_id("eagle3"))
    assert (cell.state, cell.verb) == ("FAIL", "propose") and cell_from_json(cell_to_json(cell)) == cell
    assert cell.traceback.startswith("Traceback (most recent call last):\n")
    assert cell.traceback.endswith("LedgerError: a wire came loose\n")
    for file in ("matrix/run/runner.py", "engine/loop.py", "engine/device_step.py", Path(__file__).name):
        assert file in cell.traceback
    assert f'"{HOME}' not in cell.traceback.replace(f'"{HOME}/tests', "")
    assert cell.start == green.start and cell.start.resolved is not None
    # The round that raised counts: it had been launched.
    assert cell.evidence["prefill.step"] == green.evidence["prefill.step"] and cell.evidence["decode.round"] == 2
    ask = cell.first_red
    assert ask is not None and (ask.gate, ask.token, ask.lag) == (CRASH, None, 0)
    assert ask.note == f"the last entry of a request is launch 8 of {ask.request}, with 2 output tokens"
    assert ask.prompt.startswith("Question: ") and ask.got and ask.journal[-1].endswith(" launch 8")
    assert ask.pages is not None and ask.pages.in_flight == (8,)


def test_the_counters_of_a_crash_begin_with_its_cell():
    subject = Unplugged()
    subject.most = 10_000
    runner = Runner(subject, seed=0)
    green = runner.run_cell(Cell.from_id("eagle3"))
    subject.most = subject.calls + 1
    red = runner.run_cell(Cell.from_id("eagle3.length"))
    assert (green.state, red.state) == ("PASS", "FAIL") and green.evidence["decode.round"] > 2
    assert red.evidence["decode.round"] == 2 and red.first_red is not None and red.engine_starts == 0


class Lost(Unplugged):
    """Its engine has lost its requests too."""

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        engine.llm.request = lambda rid: (_ for _ in ()).throw(KeyError(rid))
        return engine


def test_an_engine_that_cannot_show_its_requests_keeps_its_error():
    cell = Runner(Lost(), seed=0).run_cell(Cell.from_id("eagle3"))
    assert cell.error is not None and cell.error.startswith("KeyError: ") and cell.first_red is None
    assert cell.start.resolved is not None and not cell.evidence


def test_a_traceback_keeps_its_causes_and_of_a_long_one_the_end():
    def chained() -> None:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise KeyError("x" * 3 * MAX_TRACEBACK) from cause

    assert "the cause" in traceback_of(raised(lambda: exec("raise KeyError from ValueError('the cause')")))
    text = traceback_of(raised(chained))
    assert len(text) == MAX_TRACEBACK and text.startswith("…") and text.endswith("x'\n")
