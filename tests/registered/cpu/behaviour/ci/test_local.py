"""The local executor runs every cell once, whatever happens to its worker."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Event, Thread, get_ident
from types import SimpleNamespace
from typing import NoReturn

import pytest

from specmatrix.child_process import ChildProcess
from specmatrix.ci import local
from specmatrix.ci import run as command
from specmatrix.ci.local import ShardJob, Worker, run_plan, visible
from specmatrix.ci.planner import Host, plan
from specmatrix.ci.run_options import RunOptions
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.reports.render import console
from specmatrix.reports.schema import CellResult, ReportError
from specmatrix.reports.store import ReportWriter, load
from specmatrix.stopping import Stopped, stoppable
from tests.support import scripted_workers
from tests.support.child_processes import children
from tests.support.scripted_workers import STARTS

JOB = ShardJob(RunOptions(seed=4, stage="smoke"))
CELLS = [Cell.from_id(text) for text in ("none.length", "none.pair.length", "none.p4.length", "eagle3.k4")]


_OTHERS: set[int] = set()


@pytest.fixture(autouse=True)
def _children_of_earlier_tests():
    _OTHERS.clear()
    _OTHERS.update(children())


def own_children() -> list[int]:
    """The processes that this test started and that have not ended."""
    return [process for process in children() if process not in _OTHERS]


def started(workers: int, job: ShardJob = JOB) -> Iterator[CellResult]:
    return run_plan(plan(CELLS, {}, [Host("here", workers=workers)]), job)


@pytest.mark.nightly
def test_every_cell_comes_back_once():
    seen: list[list[str]] = []
    records = list[CellResult]()
    for record in run_plan(plan(CELLS, {}, [Host("here", workers=2)]), JOB, seen.append):
        assert any(record.id in workers for workers in seen)
        records.append(record)
    assert seen[0] == ["starting", "starting"]
    assert {at for workers in seen for at in workers} == {"starting", *(cell.id for cell in CELLS)}
    assert sorted(record.id for record in records) == sorted(cell.id for cell in CELLS)
    assert {record.state for record in records} <= {"PASS", "FAIL", "NOT MEASURED"}
    assert all("--seed 4" in record.repro for record in records)
    assert not own_children()


@pytest.mark.nightly
def test_a_worker_does_not_search_what_it_imported_for_garbage(tmp_path, monkeypatch):
    monkeypatch.setenv(STARTS, str(tmp_path))
    job = replace(JOB, options=scripted_workers.NotingOptions(seed=4, stage="smoke"))
    (record,) = run_plan(plan(CELLS[:1], {}, [Host("here")]), job)
    assert record.state == "PASS"
    assert int((tmp_path / "frozen").read_text()) > 100_000


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[tuple[str, str | None]]]:
    """State and error of every cell, run by one worker with a given main function and its replacements."""

    def outcome(work: Callable[..., None], on_progress=lambda current: None) -> list[tuple[str, str | None]]:
        monkeypatch.setattr(local, "work", work)
        monkeypatch.setenv(STARTS, str(tmp_path))
        records = list(run_plan(plan(CELLS, {}, [Host("here")]), JOB, on_progress))
        assert sorted(record.id for record in records) == sorted(cell.id for cell in CELLS)
        assert not own_children()
        return [(record.state, record.error) for record in records]

    return outcome


PASSED = ("PASS", None)


@pytest.mark.parametrize("work", [scripted_workers.dies_at_its_first_start, scripted_workers.loses_its_context])
def test_a_worker_that_dies_while_it_starts_or_retires_costs_no_cell(work, scripted, tmp_path):
    assert scripted(work) == [PASSED] * len(CELLS)
    assert len(list(tmp_path.iterdir())) == 2


def test_until_a_cell_has_ended_a_run_says_that_kernels_compile(monkeypatch, tmp_path, capsys):
    """numba's own cache of this checkout is found; an empty one elsewhere is empty."""
    import_module("specmatrix.kernels.decoder_layer.compiled")
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    monkeypatch.setattr(console, "LINE_SECONDS", 0)
    words = ["run", "--stage", "smoke", "--cells", "batch=pair", "--workers", "1", "--out", str(tmp_path / "out")]
    for compiles in (False, True):
        if compiles:
            monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
        assert main(words) == 0
        lines = capsys.readouterr().err.splitlines()
        said = [line.startswith("0 of ") for line in lines if line.endswith(", compiling CPU kernels, once")]
        assert said == [True] * compiles * sum(line.startswith("0 of ") for line in lines) and len(lines) > 1


def test_a_worker_takes_what_another_would_have_run(monkeypatch, tmp_path):
    """The first worker never answers: its first cell alone is lost, in the end."""
    monkeypatch.setattr(local, "work", scripted_workers.falls_silent)
    monkeypatch.setenv(STARTS, str(tmp_path))
    passed: list[CellResult] = []
    monkeypatch.setattr(local, "monotonic", lambda: 1000.0 * (len(passed) == len(CELLS) - 1))
    for record in run_plan(plan(CELLS, {}, [Host("here", workers=2)]), JOB):
        passed.append(record)
    assert [record.state for record in passed] == ["PASS"] * (len(CELLS) - 1) + ["INFRA"]


def test_cells_whose_workers_do_not_start_are_lost(scripted, tmp_path):
    error = "the cell has no result: two workers in a row did not start; the second died with exit code 3"
    assert scripted(scripted_workers.never_starts) == [("INFRA", error)] * len(CELLS)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("work", "what", "state"),
    [
        (scripted_workers.dies_in_a_message, "died with exit code -9", "INFRA"),
        (scripted_workers.is_terminated, "died with exit code -15", "INFRA"),
        (scripted_workers.aborts, "died with exit code -6", "FAIL"),
        (scripted_workers.closes_its_pipe, "closed its pipe without ending", "INFRA"),
    ],
)
def test_a_worker_that_breaks_costs_its_current_cell(work, what, state, scripted, monkeypatch):
    monkeypatch.setattr(local, "EXIT_SECONDS", 1 if "died" in what else 0.01)
    lost = (state, f"the cell has no result: its worker {what}")
    assert scripted(work) == [lost, *[PASSED] * (len(CELLS) - 1)]


def test_a_worker_that_falls_silent_costs_its_current_cell(scripted, monkeypatch):
    passed = []
    monkeypatch.setattr(local, "monotonic", lambda: 1000.0 * len(passed))

    def wait_long(current: list[str]) -> None:
        if current != ["starting"] and not passed:
            passed.append(current)

    lost = ("INFRA", "the cell has no result: its worker was silent for more than 180 s")
    assert scripted(scripted_workers.falls_silent, wait_long) == [lost, *[PASSED] * (len(CELLS) - 1)]


@pytest.mark.parametrize("receiver", ["main thread", "another thread"])
def test_a_run_that_is_stopped_while_it_starts_a_worker_leaves_none(receiver, scripted, monkeypatch):
    starting, sent = Event(), Event()

    def receive() -> None:
        starting.wait()
        signal.pthread_kill(get_ident(), signal.SIGTERM)
        sent.set()

    def started(*fields: object) -> Worker:
        starting.set()
        if receiver == "main thread":
            receive()
        sent.wait()
        return Worker(*fields)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "Worker", started)
    other = Thread(target=receive, daemon=True)
    if receiver == "another thread":
        other.start()
    with pytest.raises(Stopped), stoppable():
        scripted(scripted_workers.passes)
    assert not own_children()


def test_a_run_that_is_stopped_whenever_it_ends_a_worker_leaves_none(scripted, monkeypatch):
    def started(work: object, lane: object, process: ChildProcess, *fields: object) -> Worker:
        kill = process.kill
        monkeypatch.setattr(process, "kill", lambda: (signal.raise_signal(signal.SIGTERM), kill()))
        return Worker(work, lane, process, *fields)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "Worker", started)
    with pytest.raises(Stopped), stoppable():
        scripted(scripted_workers.passes)
    assert not own_children()


def test_what_workers_print_is_no_part_of_the_result(scripted, capfd):
    assert scripted(scripted_workers.prints) == [PASSED] * len(CELLS)
    said = capfd.readouterr()
    assert said.out == "" and len(said.err) > 1_000_000


def test_a_worker_that_takes_too_long_to_start_is_lost():
    records = list(started(1, ShardJob(RunOptions(), limit=0.05)))
    assert len(records) == len(CELLS)
    error = "the cell has no result: two workers in a row did not start; the second was silent for more than 0.05 s"
    assert {(record.state, record.error) for record in records} == {("INFRA", error)}


def test_interrupt_ends_the_workers_and_goes_on_to_the_caller(monkeypatch):
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    records = started(1)
    next(records)
    with pytest.raises(KeyboardInterrupt):
        records.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # run_plan is a generator
    assert not own_children()


@pytest.mark.parametrize(
    ("gpus", "inherited", "shown"),
    [((), None, ""), ((), "4,5", ""), ((0, 1), None, "0,1"), ((1,), "4,5", "5"), ((0,), "GPU-b", "GPU-b")],
)
def test_a_worker_sees_its_own_gpus_among_those_of_the_run(gpus, inherited, shown):
    assert visible(gpus, inherited) == shown


class Terminal(StringIO):
    """Records the number of workers whenever something is printed."""

    workers = -1

    def write(self, text: str) -> int:
        self.workers = len(own_children())
        return super().write(text)


def test_workers_have_ended_when_a_full_disk_is_reported(monkeypatch, tmp_path):
    def full(self: ReportWriter, cell: CellResult) -> None:
        raise ReportError("the disk is full")

    monkeypatch.setattr(local, "work", scripted_workers.passes)
    monkeypatch.setattr(ReportWriter, "write", full)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["run", "--stage", "smoke", "--cells", "batch=pair", "--workers", "2", "--out", str(tmp_path)]) == 2
    assert (terminal.getvalue(), terminal.workers) == ("specmatrix: the disk is full\n", 0)


def test_two_runs_into_the_same_folder_do_not_disturb_each_other(monkeypatch, tmp_path, capsys):
    words = ["run", "--stage", "smoke", "--cells", "none.length", "--workers", "1", "--out", str(tmp_path), "--json"]
    monkeypatch.setattr(local, "work", scripted_workers.passes)
    with ReportWriter(tmp_path, run_header("cpu", "smoke", 0, GATES)):
        assert main(words) == 2
        assert capsys.readouterr() == ("", f"specmatrix: another run is writing a report in {tmp_path}\n")
        assert not own_children()

    class Overtaken(ReportWriter):
        """The next run starts as soon as this one has written its report."""

        def close(self) -> Path:
            path = super().close()
            self.partial.touch()
            return path

    monkeypatch.setattr(command, "ReportWriter", Overtaken)
    assert main(words) == 0


def test_a_run_that_is_stopped_after_its_report_says_so(monkeypatch, tmp_path, capsys):
    class StoppedAtTheEnd(ReportWriter):
        def close(self) -> Path:
            super().close()
            raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(local, "work", scripted_workers.passes)
    monkeypatch.setattr(command, "ReportWriter", StoppedAtTheEnd)
    words = ["run", "--stage", "smoke", "--cells", "none.length", "--workers", "1", "--out", str(tmp_path)]
    assert main(words) == 143
    report = tmp_path / "report.jsonl"
    said = f"interrupted after {report} was written; its summary and pages were not\n"
    assert capsys.readouterr() == ("", said)
    assert len(load(report)) == 1


RED_RUN = ["run", "--stage", "smoke", "--cells", "eagle3.s3.k4.n8.v2.mixed_lengths", "--cells", "none.length"]


def test_a_red_run_tells_its_candidate_causes_apart_unless_it_ends_at_the_first(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    assert main([*RED_RUN, "--workers", "1", "--out", str(tmp_path)]) == 1
    report = load(tmp_path)
    [(cell, cause)] = report.causes.items()
    assert cell == RED_RUN[4] and list(report) == [report[name] for name in (RED_RUN[4], RED_RUN[6])]
    assert cause.factors[0] == ("algorithm != none",) and cause.ran > 0
    text = f"where none of 1 passing cell is ({cause.ran} more cells ran to tell causes apart)"
    assert text in capsys.readouterr().out.replace("\n", " ")
    assert main([*RED_RUN, "--workers", "1", "--fail-fast", "--out", str(tmp_path / "first")]) == 1
    assert main([*RED_RUN[:5], "--workers", "1", "--out", str(tmp_path / "alone")]) == 1
    assert load(tmp_path / "first").causes == load(tmp_path / "alone").causes == {}


def test_a_run_that_is_stopped_while_it_looks_for_causes_keeps_its_report(monkeypatch, tmp_path, capsys):
    def stopped(*_: object, today: str) -> NoReturn:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    monkeypatch.setattr(command, "causes", stopped)
    assert main([*RED_RUN, "--workers", "1", "--out", str(tmp_path)]) == 130
    said = f"interrupted after {tmp_path / 'report.jsonl'} was written; its summary and pages were not\n"
    assert capsys.readouterr() == ("", said)
    assert len(load(tmp_path)) == 2


def test_a_run_that_is_stopped_midway_names_its_red_cells(monkeypatch, tmp_path, capsys):
    class StoppedAtTheSecond(ReportWriter):
        def write(self, cell: CellResult) -> None:
            if self.partial.read_text().count('"kind":"cell"'):
                raise Stopped(signal.SIGTERM)
            super().write(cell)

    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    monkeypatch.setattr(command, "ReportWriter", StoppedAtTheSecond)
    words = ["run", "--stage", "smoke", "--cells", "algorithm=eagle3", "--limit", "2", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 143
    said = r"interrupted after 1 of 2 cells, 1 of them red \(eagle3\.\S+\); partial results are in .*"
    assert re.fullmatch(said, capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(("size", "names"), [(3, [local.COMPILED]), (4, [local.COMPILED, local.NETWORKS])])
def test_a_worker_of_many_cells_imports_transformers_before_it_is_frozen(monkeypatch, size, names):
    imported: list[str] = []
    frozen: list[list[str]] = []

    class Ended:
        send = close = staticmethod(lambda *_: None)

        def recv(self) -> NoReturn:
            raise EOFError

    def worker(workers: object, waiting: local.Waiting, *_: object) -> NoReturn:
        local.work(waiting.job, (), Ended())  # type: ignore[arg-type]  # all of a connection that it needs
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(local, "MANY", 4)
    monkeypatch.setattr(local, "_start", worker)
    monkeypatch.setattr(local, "job_runner", lambda job: SimpleNamespace(shut_down=lambda: None))
    monkeypatch.setattr(local, "import_module", imported.append)
    monkeypatch.setattr(local, "freeze", lambda: frozen.append([*imported]))
    with pytest.raises(Stopped):
        list(run_plan(plan(CELLS[:size], {}, [Host("here")]), JOB))
    assert frozen == [names] and imported == names
