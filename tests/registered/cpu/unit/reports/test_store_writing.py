import fcntl
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from specmatrix.reports.render.run import write_run
from specmatrix.reports.schema import GateResult, ReportError
from specmatrix.reports.store import ReportWriter, cell_from_json, cell_to_json, load

CONFTEST = Path(__file__).with_name("conftest.py")
# A run in its own process: writes cells without end, and says after each that it is on disk.
ENDLESS = f"""
import importlib.util, resource, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("made_up", {str(CONFTEST)!r})
made_up = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made_up)
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import ReportWriter
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    with ReportWriter(Path(sys.argv[1]), made_up.header()) as writer:
        for number in range(100_000):
            writer.write(made_up.cell(f"cell{{number}}"))
            print(number, flush=True)
except ReportError as error:
    sys.exit(str(error))
"""


def test_cells_are_on_disk_before_the_run_ends(tmp_path, make_cell, make_header):
    writer = ReportWriter(tmp_path, make_header())
    writer.write(make_cell("a"))
    assert b'"id":"a"' in writer.partial.read_bytes()
    assert not writer.path.exists()
    assert writer.close() == tmp_path / "report.jsonl"


def test_an_exception_leaves_no_report(tmp_path, make_cell, make_header):
    with pytest.raises(KeyboardInterrupt), ReportWriter(tmp_path, make_header()) as writer:
        writer.write(make_cell("a"))
        raise KeyboardInterrupt
    with pytest.raises(ReportError, match=f"^{tmp_path} is of a run that did not finish$"):
        load(tmp_path)
    with pytest.raises(ReportError, match=r"report.jsonl.partial is of a run that did not finish$"):
        load(tmp_path / "report.jsonl.partial")


def test_an_earlier_run_stays_until_the_new_one_is_complete(tmp_path, make_cell, make_header, write_report):
    write_report(tmp_path, [make_cell("old")])
    for name in ("summary.json", "report.md", "report.html", "notes.txt"):
        (tmp_path / name).write_text("old")
    earlier = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    interrupted = ReportWriter(tmp_path, make_header())
    interrupted.write(make_cell("dead"))
    interrupted.abort()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each != interrupted.partial} == earlier
    with ReportWriter(tmp_path, make_header()) as writer:
        writer.write(make_cell("new"))
    assert list(load(tmp_path).lines) == ["new"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "report.jsonl"]


def test_a_directory_with_an_interrupted_run_has_not_the_run_before(tmp_path, make_cell, make_header, write_report):
    write_report(tmp_path, [make_cell("old")])
    ReportWriter(tmp_path, make_header()).abort()
    words = f"is of a run that did not finish; name {tmp_path}/report.jsonl to read the one before it"
    with pytest.raises(ReportError, match=words):
        load(tmp_path)
    assert list(load(tmp_path / "report.jsonl").lines) == ["old"]


def test_two_runs_cannot_write_in_one_place(tmp_path, make_cell, make_header):
    with ReportWriter(tmp_path, make_header()) as first:
        with pytest.raises(ReportError, match=f"another run is writing a report in {tmp_path}"):
            ReportWriter(tmp_path, make_header())
        first.write(make_cell("a"))
    assert list(load(tmp_path).lines) == ["a"]


def test_a_cell_is_written_once(tmp_path, make_cell, make_header):
    with ReportWriter(tmp_path, make_header()) as writer:
        writer.write(make_cell("a"))
        with pytest.raises(ReportError, match="cell 'a' is in the report twice; a cell is written once"):
            writer.write(make_cell("a"))
    assert len(load(tmp_path)) == 1


def test_no_link_in_the_place_of_a_partial_file_is_followed(tmp_path, make_header):
    (mine := tmp_path / "mine").write_text("mine")
    partial = tmp_path / "out" / "report.jsonl.partial"
    partial.parent.mkdir()
    partial.symlink_to(mine)
    with pytest.raises(ReportError, match=r"cannot write .*out/report.jsonl.partial: Too many levels of symbolic"):
        ReportWriter(tmp_path / "out", make_header())
    partial.unlink()
    partial.hardlink_to(mine)
    ReportWriter(tmp_path / "out", make_header()).close()
    assert mine.read_text() == "mine"


def test_a_run_that_starts_as_another_ends_does_not_empty_its_report(tmp_path, make_cell, make_header, monkeypatch):
    first = ReportWriter(tmp_path, make_header())
    first.write(make_cell("a"))
    real = fcntl.flock

    def late(*given: object) -> None:
        """The first run gives its file another name after the second has opened it."""
        monkeypatch.undo()
        first.close()
        real(*given)

    monkeypatch.setattr(fcntl, "flock", late)
    second = ReportWriter(tmp_path, make_header())
    assert list(load(tmp_path / "report.jsonl").lines) == ["a"]
    second.write(make_cell("b"))
    second.close()
    with second.read() as report:
        assert list(report.lines) == ["b"]
    words = f"another run has written {tmp_path}/report.jsonl meanwhile; give each run"
    with pytest.raises(ReportError, match=words), first.read():
        pass


def test_pages_are_not_written_beside_another_runs_report(tmp_path, make_cell, make_header, write_report, monkeypatch):
    """Who writes pages and who replaces the report hold the same lock."""
    locked, real = [], fcntl.flock
    with ReportWriter(tmp_path, make_header()) as first:
        first.write(make_cell("a"))

    def watched(file: object, how: int) -> None:
        real(file, how)
        locked.append(os.fstat(getattr(file, "fileno", lambda: file)()))

    monkeypatch.setattr(fcntl, "flock", watched)
    with first.read():
        pass
    write_report(tmp_path, [make_cell("b")])
    assert [os.path.samestat(tmp_path.stat(), each) for each in locked] == [True, False, True]
    with pytest.raises(ReportError, match="another run has written"), first.read() as report:
        write_run(report)
    assert [each.name for each in tmp_path.iterdir()] == ["report.jsonl"]


def test_of_many_writers_into_one_folder_each_leaves_a_whole_run_or_is_refused(tmp_path, make_cell, make_header):
    ready, done = Barrier(4), Counter[str]()

    def write(number: int) -> None:
        ready.wait()
        for _ in range(10):
            try:
                with ReportWriter(tmp_path, make_header(commit=f"{number}" * 12)) as writer:
                    writer.write(make_cell(f"cell{number}"))
                with writer.read() as report:
                    assert [cell.id for cell in write_run(report).cells] == [f"cell{number}"]
                done["whole"] += 1
            except ReportError as refused:
                assert "another run" in str(refused)
                done["refused"] += 1

    with ThreadPoolExecutor(4) as writers:
        [*writers.map(write, range(4))]
    assert done["whole"] > 0 and done.total() == 40
    (cell,) = load(tmp_path)
    for name in ("report.md", "report.html"):
        page = tmp_path / name
        assert not page.exists() or cell.id.removeprefix("cell") * 12 in page.read_text()


def test_a_place_that_cannot_be_written_is_named(tmp_path, make_header):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=f"cannot write {tmp_path}/file: File exists"):
        ReportWriter(tmp_path / "file", make_header())


def test_a_disk_that_fills_up_in_the_middle_leaves_no_report(tmp_path):
    """The size limit cuts a line in its middle, as a full disk does."""
    command = [sys.executable, "-c", ENDLESS, str(tmp_path), "20000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(f"cannot write {tmp_path}/report.jsonl: File too large")
    assert int(done.stdout.split()[-1]) > 5
    assert [each.name for each in tmp_path.iterdir()] == ["report.jsonl.partial"]


def test_zero_counters_are_left_out_and_a_start_is_written_once(tmp_path, make_cell, write_report):
    cells = [make_cell("a", evidence={"x": 0, "y": 2}), make_cell("b"), make_cell("c", resolved={"topk": 1})]
    directory = write_report(tmp_path, cells)
    text = (directory / "report.jsonl").read_text()
    assert text.count('"kind":"start"') == 2 and '"x":0' not in text
    report = load(directory)
    assert report["a"].evidence == {"y": 2} and report.evidence == {"y": 2, "speculated": 24}
    assert report["a"].start is report["b"].start is not report["c"].start
    assert report["c"].start.resolved == {"topk": 1}


def test_a_cell_names_only_values_that_are_not_those_of_the_header(tmp_path, make_cell, make_header):
    usual = make_cell().axes | {"sampling": "greedy"}
    other = dict(reversed((usual | {"topk": "1", "tp": "2"}).items()))
    with ReportWriter(tmp_path, make_header(axes=usual)) as writer:
        writer.write(make_cell("a", axes=usual))
        writer.write(make_cell("b", axes=other))
    lines = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [line["axes"] for line in lines if line["kind"] == "cell"] == [{}, {"tp": "2", "topk": "1"}]
    report = load(tmp_path)
    assert [report["a"].axes, report["b"].axes] == [usual, other]


def test_a_cell_travels_between_processes_with_its_start(make_cell):
    cell = make_cell("a", gates=(GateResult("ledger", "FAIL", {"pages": 3}, (0.5, 1.0), "leaked"),))
    assert cell_from_json(cell_to_json(cell)) == cell


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"gates": (GateResult("ledger", "PASS", {"share": float("nan")}),)}, "Out of range float"),
        ({"gates": (GateResult("ledger", "PASS", {"share": float("inf")}),)}, "Out of range float"),
        ({"gates": (GateResult("ledger", "PASS", {"share": object()}),)}, "Encoding objects of type object"),
        ({"gates": (GateResult("ledger", "PASS", {"share": 10**6000}),)}, "Exceeds the limit"),
        ({"seconds": float("nan")}, "Out of range float"),
        ({"expect": "OK"}, r"Invalid enum value 'OK' - at `\$.expect`"),
        ({"state": "FAIL", "error": "x", "gates": (GateResult("acceptance", "GREEN"),)}, "Invalid enum value 'GREEN'"),
        ({"axes": {"topk": 4}}, r"Expected `str`, got `int` - at `\$.axes"),
        ({"requested": {"nested": [[[[...]]]]}}, "Encoding objects of type ellipsis"),
    ],
)
def test_what_could_not_be_read_back_is_refused_and_leaves_the_report(tmp_path, make_cell, bad, sentence, make_header):
    with ReportWriter(tmp_path, make_header()) as writer:
        writer.write(make_cell("a"))
        with pytest.raises(ReportError, match=f"cell 'x' cannot be written as JSON: {sentence}.*; allowed are text"):
            writer.write(make_cell("x", **bad))
    assert list(load(tmp_path)) == [make_cell("a")]


def test_half_a_character_does_not_end_a_run(tmp_path, make_cell, write_report):
    assert load(write_report(tmp_path, [make_cell("a", error="no file x\udcff")]))["a"].error == "no file x?"


def test_a_value_that_holds_itself_or_is_too_deep_is_refused(tmp_path, make_cell, make_header):
    around: list[object] = []
    around.append(around)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with ReportWriter(tmp_path, make_header()) as writer:
        for value in (around, deep):
            with pytest.raises(ReportError, match="cell 'x' cannot be written as JSON: maximum recursion depth"):
                writer.write(make_cell("x", requested={"value": value}))
