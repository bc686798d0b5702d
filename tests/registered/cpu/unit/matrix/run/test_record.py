"""Records of cells that were not judged: what is asked of them in a tier, and what crashed."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from msgspec import structs

from specmatrix import HOME
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.parallel.group import RankLost
from specmatrix.errors import ConfigError, LedgerError, NotFiniteError, RequestError
from specmatrix.matrix.cells.cell import GPU_LIMITS, Cell, asked
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run import provenance
from specmatrix.matrix.run.provenance import MAX_TRACEBACK, BaselineError, crashed, judged, lost, traceback_of, verb_of
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.engine_process import EngineFailed
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, Stalled
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.schema import CRASH, FailingRequest, GateResult, ReasonRecord, RewriteRecord, StartRecord
from specmatrix.reports.store import cell_from_json, cell_to_json


def test_a_gpu_tier_requests_the_same_in_float32_on_a_gpu_and_limits_graphs_where_slots_are_few():
    cell = Cell.from_id("eagle3.s3.k4.n8.v2")
    assert asked(cell).device == asked(cell).dtype == "auto"
    assert asked(cell, 1) == replace(asked(cell), device="cuda", dtype="float32")
    few = cell._replace(slots="4")
    assert asked(few, 1) == replace(asked(few), device="cuda", dtype="float32", **GPU_LIMITS)
    ngram = Cell.from_id("ngram.m4")
    assert asked(ngram, 1).cuda_graph_max_bs == "auto" and asked(ngram, 1).cuda_graph_max_gb == 3
    found = judged(prepare(cell, "gpu1", 2), ())
    assert (found.state, found.expect) == ("NOT MEASURED", "runs")
    assert found.start.requested["device"] == "cuda"
    assert found.repro == f"specmatrix run --tier gpu1 --cells '{cell.id}' --seed 2 --out \"$(mktemp -d)\""
    assert (found.start.resolved, found.start.resolved_hash, found.gates) == (None, None, ())
    assert found.error == "no gate applied to this cell"


def raised(error: Exception) -> Exception:
    def drive() -> None:
        raise error

    try:
        drive()
    except Exception as caught:
        return caught
    raise AssertionError


def test_a_crash_is_identified_by_its_exception_and_not_by_the_names_of_its_frames():
    def _baseline() -> Exception:
        return raised(RuntimeError("a wire came loose"))

    prepared = prepare(Cell.from_id("eagle3.pair"))
    own, baseline = (crashed(prepared, error) for error in (_baseline(), BaselineError(_baseline())))
    text = "RuntimeError: a wire came loose, in drive (test_record.py:"
    assert own.state == "INFRA" and own.error is not None and own.error.startswith(text)
    assert baseline.error is not None and baseline.error.startswith(f"baseline: {text}")
    law = raised(LedgerError("page 3 has two owners"))
    assert crashed(prepared, BaselineError(law)).state == crashed(prepared, law).state == "FAIL"
    assert str(BaselineError(ValueError("n"))) == "baseline: ValueError: n"


def test_a_crash_names_its_last_frames_innermost_first():
    def outermost() -> Exception:
        return raised(RuntimeError("gone"))

    found = crashed(prepare(Cell()), outermost())
    file, line = Path(__file__).name, raised.__code__.co_firstlineno
    assert found.error == f"RuntimeError: gone, in drive ({file}:{line + 2}) < raised ({file}:{line + 5})"
    assert found.traceback.endswith("RuntimeError: gone\n") and (found.verb, found.first_red) == ("", None)
    deep = crashed(prepare(Cell()), raised_below(5))
    assert deep.error is not None and re.findall(r"(\w+) \(", deep.error) == ["drive", "raised", "raised_below"]


def raised_below(depth: int) -> Exception:
    try:
        found = raised_below(depth - 1) if depth else raised(RuntimeError("gone"))
        raise found
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "subject", "state", "text", "verb"),
    [
        (EngineFailed("lost", "generate", "the whole text"), "tiny", "FAIL", "lost", "generate"),
        (EngineFailed("lost", "generate", "the whole text"), "reference", "FAIL", "lost", "generate"),
        (ConfigError("n is 2"), "tiny", "FAIL", "n is 2", ""),
        (ConfigError("n is 2"), "reference", "INFRA", "ConfigError: n is 2, in drive (", ""),
        (RequestError("n is 2"), "reference", "FAIL", "RequestError: n is 2, in drive (", ""),
        (NotFiniteError("NaN"), "reference", "FAIL", "NotFiniteError: NaN, in drive (", ""),
        (RankLost("rank 1 of 2 died"), "reference", "INFRA", "RankLost: rank 1 of 2 died, in drive (", ""),
        (Stalled(9, 5, 1, "a", 2, 3), "reference", "FAIL", "Stalled: the requests have not ended after 9 steps; ", ""),
    ],
)
@pytest.mark.parametrize("baseline", [False, True])
def test_who_failed_decides_the_state_of_a_crash(error, subject, state, text, verb, baseline):
    cause, command = raised(error), EngineCommand({"depth": 3}, {})
    ask = FailingRequest(CRASH, "q1")
    prepared, failed = prepare(Cell.from_id("eagle3"), subject=subject), BaselineError(cause) if baseline else cause
    found = crashed(prepared, failed, command, Started(), evidence={"spec.drafted": 4}, first_red=ask)
    assert found.error is not None and found.error.startswith(("baseline: " if baseline else "") + text)
    assert (found.state, found.verb) == (state, verb)
    assert (found.start.requested, found.start.resolved) == ({"depth": 3}, {"depth": 4})
    assert ("--subject tiny " in found.repro) is (subject == "tiny")
    assert found.evidence == {"spec.drafted": 4} and found.gates == ()
    if isinstance(error, EngineFailed):
        assert (found.error[-4:], found.traceback, found.first_red) == ("lost", "the whole text", None)
    else:
        assert found.traceback == traceback_of(cause) != ""
        assert found.first_red == (None if (subject, state) == ("tiny", "FAIL") else ask)


class Started(RunningEngine):
    start_hash = "abc"
    resolved: ClassVar = {
        "depth": 4,
        "reasons": [{"field": "depth", "value": 4, "because": "it fits"}],
        "rewrites": [{"field": "depth", "asked": 3, "got": 4, "reason": "it is even"}],
    }


@pytest.mark.parametrize(
    ("models", "variant", "requested"),
    [
        ({"target": "llama-mini"}, "v", {"depth": 3, "checkpoints": {"target": "llama-mini"}, "variant": "v"}),
        ({"target": "llama-mini"}, "", {"depth": 3, "checkpoints": {"target": "llama-mini"}, "variant": ""}),
        ({}, "v", {"depth": 3}),
    ],
)
def test_a_record_has_what_was_requested_of_a_subject_and_what_its_engine_resolved(models, variant, requested):
    command, ask = EngineCommand({"depth": 3}, models, variant=variant), FailingRequest("schedule", "q1")
    outcomes = [Outcome("schedule", State.PASS, {"steps": 3, "first": None}, (0, 1), "fine", accept="make it so")]
    found = judged(prepare(Cell()), outcomes, Started(), {"x": 1}, command, ask)
    reasons, rewrites = (ReasonRecord("depth", 4, "it fits"),), (RewriteRecord("depth", 3, 4, "it is even"),)
    assert found.start == StartRecord(requested, {"depth": 4}, "abc", reasons, rewrites)
    gate = GateResult("schedule", "PASS", {"steps": 3, "first": "none"}, (0, 1), "fine", "make it so")
    seen = (found.state, found.error, found.evidence, found.first_red, found.gates)
    assert seen == ("PASS", None, {"x": 1}, ask, (gate,))
    again = provenance.with_outcome(found, Outcome("speed", State.FAIL, {}, None, "slow"))
    assert again == structs.replace(found, state="FAIL", gates=(gate, GateResult("speed", "FAIL", {}, None, "slow")))


def test_a_lost_cell_is_red_and_else_the_cell_before_it_ran():
    prepared = prepare(Cell.from_id("eagle3.k4"), "cpu", 4)
    found, other = lost(prepared, "the power went"), judged(prepared, ())
    assert (found.state, found.gates, found.error) == ("INFRA", (), "the cell has no result: the power went")
    assert found.repro == "specmatrix run --cells 'eagle3.k4' --seed 4 --out \"$(mktemp -d)\""
    assert structs.replace(found, state="NOT MEASURED", error=other.error) == other
    assert found.start.requested["speculative_eagle_topk"] == 4


def thrown(call) -> BaseException:
    with pytest.raises(BaseException) as found:
        call()
    return found.value


def test_the_innermost_verb_of_the_ledger_is_named_and_of_code_outside_the_engine_none():
    ledger = Ledger(FullAttention(4, 4))
    ledger.open(1)
    calls = (lambda: ledger.settle(1, 1), lambda: ledger.donate(1, 9), lambda: [][0])
    assert [verb_of(thrown(call)) for call in calls] == ["settle", "donate", ""]
    assert verb_of(ValueError("never thrown")) == ""


def test_every_verb_is_a_function_of_its_file():
    for path, verbs in provenance.VERBS.items():
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
    # The round that thrown counts: it had been launched.
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

    assert "the cause" in traceback_of(thrown(lambda: exec("raise KeyError from ValueError('the cause')")))
    text = traceback_of(thrown(chained))
    assert len(text) == MAX_TRACEBACK and text.startswith("…") and text.endswith("x'\n")
