"""Cells on a foreign subject: what its process, its claims and its own values do to their records."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from specmatrix.child_process import ChildProcess
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.registry import GATES as REFERENCE_GATES
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.runner import KEPT, Runner
from specmatrix.matrix.subjects.engine_process import EngineFailed, EngineProcess
from specmatrix.matrix.subjects.http.openai import TEXTS
from specmatrix.matrix.subjects.http.sglang import NATIVE
from specmatrix.matrix.subjects.protocol import Diverged, EngineCommand, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.translations import NOT_REFUSED
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.reports.schema import GATES, CellResult
from tests.support.tiny_subject import DIVERGED, ReplaySubject

DRAFTED = Cell.from_id("eagle3.s3.k1")


@contextmanager
def running(subject: ReplaySubject, **limits: float) -> Iterator[Runner]:
    subject.profile = replace(subject.profile, **limits)
    runner = Runner(subject, 0, gates=applied_gates(subject.profile).gates)
    try:
        yield runner
    finally:
        runner.shut_down()


def process(subject: ReplaySubject) -> tuple[EngineProcess, EngineCommand]:
    command = subject.translate(prepare(DRAFTED, subject=subject.name))
    assert isinstance(command, EngineCommand)
    return EngineProcess(subject, command), command


def judged(fault: str, cell: Cell = DRAFTED, **limits: float) -> CellResult:
    with running(ReplaySubject(fault), **limits) as runner:
        return runner.run_cell(cell)


def test_a_faultless_subject_is_green_and_its_command_is_recorded():
    found = judged("")
    assert (found.state, found.error) == ("PASS", None)
    assert [gate.name for gate in found.gates] == ["claimed_capabilities", "oracle", "lossless", "finish", "acceptance"]
    assert (
        found.start.requested["drafter"] == "eagle3"
        and found.start.requested["checkpoints"]["draft"] == "llama-mini-eagle3"
    )
    assert found.start.resolved == {"drafter": "eagle3", "depth": 3} and not found.start.rewrites
    assert found.repro.startswith("specmatrix run --subject replay --cells 'eagle3.s3.k1' ")
    oracle = found.gate("oracle")
    assert oracle is not None and oracle.numbers["oracle_tokens"] > 20 and oracle.numbers["ties"] == 0


def test_what_an_engine_leaves_in_the_temporary_directory_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(ReplaySubject()) as runner:
        assert runner.run_cell(DRAFTED).state == "PASS"
        folders = list(tmp_path.glob("specmatrix-engine-*"))
        assert folders
        for folder in folders:
            (folder / "left").touch()
    assert not list(tmp_path.iterdir())


def test_few_engines_of_baselines_are_kept(tmp_path, monkeypatch):
    """Each is a process that holds a whole engine of another library."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with running(ReplaySubject()) as runner:
        for cell in ("none", "none.qwen3", "none.deepseek", "none.mistral"):
            runner.run_cell(Cell.from_id(cell))
            assert len(list(tmp_path.glob("specmatrix-engine-*"))) <= KEPT + 1, "one more runs the cell"
        kept = [start.model for start, _ in runner.baselines.engines]
        assert kept == ["deepseek", "mistral"]
        starts = runner.baselines.starts
        runner.run_cell(Cell.from_id("none.deepseek.length"))
        assert runner.baselines.starts == starts
        assert [start.model for start, _ in runner.baselines.engines] == ["mistral", "deepseek"]


def test_an_unsupported_cell_has_a_reason_and_no_gates():
    with running(ReplaySubject()) as runner:
        for cell, reason in (("eagle3.s3.k1.p4", "it has no page_size"), ("none.s3", NOT_REFUSED)):
            found = runner.run_cell(Cell.from_id(cell))
            assert (found.state, found.gates, found.error) == ("UNSUPPORTED", (), reason)
        assert runner.engine is None


@pytest.mark.parametrize(("fault", "message"), [("refusal", r"q\d+ was refused: too busy")])
def test_a_claim_that_does_not_hold_is_red(fault, message):
    found = judged(fault)
    claims = found.gate("claimed_capabilities")
    assert found.state == "FAIL" and claims is not None and claims.state == "FAIL"
    assert re.fullmatch(message, claims.message)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("crash", "the engine ended with status -9 during generate; end of its log:\nabout to fall over"),
        ("raise", "generate failed with RuntimeError: a wire came loose; end of its log:\nTraceback"),
        ("refuse", "the engine does not run the cell: drafter eagle3 is not available; use none"),
    ],
)
def test_a_failure_of_the_engine_is_the_red_of_its_cell_alone(fault, error):
    with running(ReplaySubject(fault)) as runner:
        found = runner.run_cell(DRAFTED)
        assert found.state == "FAIL" and found.error is not None and found.error.startswith(error)
        assert found.verb == ("" if fault == "refuse" else "generate")
        assert ("a wire came loose" in found.traceback) is (fault == "raise")
        assert found.start.requested["drafter"] == "eagle3", "what this engine was asked for"
        assert runner.run_cell(Cell()).state == "PASS"


def test_a_baseline_that_fails_is_not_started_again_for_the_next_cell():
    with running(ReplaySubject("baseline crash")) as runner:
        first, second = runner.run_cell(DRAFTED), runner.run_cell(DRAFTED._replace(steps="2"))
        assert first.state == second.state == "FAIL" and first.error == second.error is not None
        assert first.error.startswith("baseline: the engine ended with status -9 during generate; end of its log:\n")
        assert len(runner.baselines.runs) == 1


class Flagged(ReplaySubject):
    """Its flags follow from its requests, as vLLM's do."""

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        found = super().translate(prepared)
        assert isinstance(found, EngineCommand)
        return replace(found, flags={**found.flags, "stops": any(request.stop for request in prepared.requests)})


@pytest.mark.parametrize(("subject", "starts"), [(ReplaySubject(), 1), (Flagged(), 2)])
def test_a_baselines_engine_serves_cells_of_its_own_flags_only(subject: ReplaySubject, starts: int):
    with running(subject) as runner:
        for cell in (DRAFTED, DRAFTED._replace(finish="stop_string"), DRAFTED._replace(steps="2")):
            assert runner.run_cell(cell).state == "PASS"
        assert runner.baselines.starts == starts


def test_an_engine_behind_its_limit_is_killed():
    found = judged("hang", answer_seconds=1.0)
    assert found.state == "FAIL" and found.error == "generate took more than 1 s; its log is empty"


@pytest.mark.parametrize(
    ("used", "read"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.51], 6),  # as much as it may
        ([0.0, 0.1, 0.2, 0.3, 0.301], 5),  # it waits for something
        ([0.0, 0.1, 0.2, None], 4),  # it has ended
        ([None, 0.1], 1),  # the system does not tell
    ],
)
def test_on_a_busy_host_the_limit_is_of_the_engines_own_time(monkeypatch, used, read):
    """The engine never answers; what it has used by then is scripted."""
    times = iter(used)
    subject = ReplaySubject("hang")
    subject.profile = replace(subject.profile, answer_seconds=0.5)
    engine, command = process(subject)
    monkeypatch.setattr(ChildProcess, "cpu_seconds", lambda self: next(times))
    with pytest.raises(EngineFailed, match=r"^generate took more than 0\.5 s; "):
        engine.generate(command.asks)
    assert len(used) - len(list(times)) == read


def test_ranks_that_diverge_in_the_process_arrive_with_how_far_they_agreed():
    engine, command = process(ReplaySubject("diverge"))
    with pytest.raises(Diverged) as found:
        engine.generate(command.asks)
    engine.stop()
    assert found.value.agreement == DIVERGED


def test_answers_in_another_order_are_red():
    found = judged("order", Cell.from_id("eagle3.s3.k1.pair"))
    assert found.state == "FAIL" and found.error is not None
    assert found.error.startswith("the answers must have the asks' ids in order, ['q")


def test_what_the_subject_runs_instead_is_a_rewrite():
    found = judged("rewrite")
    assert found.state == "PASS" and found.start.resolved is not None and found.start.resolved["depth"] == 9
    (rewrite,) = found.start.rewrites
    assert (rewrite.field, rewrite.asked, rewrite.got) == ("depth", 3, 9)


def test_plain_decoding_that_is_not_the_oracles_is_red_by_itself():
    found = judged("plain differs")
    states = {gate.name: gate.state for gate in found.gates}
    assert states["oracle"] == "FAIL" and states["lossless"] == "PASS"
    oracle = found.gate("oracle")
    assert oracle is not None and " at token 4: " in oracle.message


def test_a_tie_is_counted_and_the_comparison_goes_on_along_the_oracles_text():
    """With a bound that makes every position a tie, the changed token is one, and what follows it is compared."""
    with running(ReplaySubject("plain differs"), tie_nats=100.0) as runner:
        oracle = runner.run_cell(DRAFTED).gate("oracle")
        assert oracle is not None and (oracle.state, oracle.numbers["ties"]) == ("PASS", 1)
        (plain,) = runner.baselines.runs.values()
        continuation = oracle_of("llama-mini").continuation(plain.requests[0])
        assert oracle.numbers["oracle_tokens"] == min(96, len(continuation)) - 1
        ((start, after),) = plain.resumed[plain.requests[0].name]
        assert start == 5 and after[:20] == continuation[5:25]


def test_reports_and_waivers_know_every_gate_of_a_subject():
    applied = map(applied_gates, (load_subject("transformers").profile, NATIVE, TEXTS))
    names = {name for found in applied for name in (*(gate.name for gate in found.gates), *found.excluded)}
    own = names - {gate.name for gate in REFERENCE_GATES}
    assert own == {"claimed_capabilities", "oracle", "identities", "text"} <= set(GATES)
