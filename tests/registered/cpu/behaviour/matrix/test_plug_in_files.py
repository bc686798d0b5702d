"""A user's file as a plug-in: its values, gates, faults and algorithms in the command line, its workers and pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.reports.store import load

EXAMPLE = HOME / "examples" / "plug_in.py"
COPY = HOME / "examples" / "copy_the_prompt.py"
OF_BOTH = "page_size=8 or sampling=cold"


def called(folder: Path, *words: str, module="specmatrix", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, as what a plug-in registers stays."""
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    words = (sys.executable, "-m", module, *words)
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=own, check=False)


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file that is loaded in this process leaves is removed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SPECMATRIX_FILES", "")


VALUE = "from specmatrix.matrix.cells.own_values import register_value\nregister_value('page_size', {!r}, 'p8')\n"
GATE = "from specmatrix.matrix.gates.registry import GATES, register_gate\nregister_gate(GATES[0])\n"
FAULT = (
    "from specmatrix.matrix.faults.fault import catalogue, register_fault\nregister_fault(catalogue()[0])\n",
    "from specmatrix.matrix.faults.fault import register_fault\nregister_fault('late')\n",
)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 / 0", ", line 1 cannot be loaded: ZeroDivisionError: division by zero"),
        ("import no_such_module", ", line 1 cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("X = 1", " registers nothing; it must call register_value, register_gate, register_fault or"),
        (VALUE.format("4"), ", line 2 cannot be loaded: value '4' of axis page_size: the axis has it already"),
        (GATE, ", line 2 cannot be loaded: gate 'config' exists already; choose another name"),
        (FAULT[0], ", line 2 cannot be loaded: fault "),
        (FAULT[1], ", line 2 cannot be loaded: a fault must be a Fault, got 'late'"),
        (None, " does not exist; pass a Python file that must call register_value, "),
    ],
)
@pytest.mark.parametrize("words", [("axes",), ("run", "--cells", "none")], ids=["axes", "run"])
def test_a_plug_in_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, capsys, text, sentence: str, words):
    if text is not None:
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert main([*words, "--plugin", str(tmp_path / "mine.py")]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"specmatrix: plug-in file {tmp_path / 'mine.py'}{sentence}") and said.out == ""
    assert said.err.count("\n") == 1


def test_the_example_adds_values_cells_and_a_fault(tmp_path: Path):
    shown = called(tmp_path, "axes", "--plugin", str(EXAMPLE), "--json")
    values = {row["axis"]: [one["token"] for one in row["values"]] for row in json.loads(shown.stdout)["axes"]}
    assert values["page_size"][-1] == "p8" and values["sampling"][-1] == "cold"
    # Twice is once; the variable serves commands that have no such option.
    twice = ("--plugin", str(EXAMPLE)) * 2
    words = ("cells", "list", *twice, "--stage", "smoke", "--cells", OF_BOTH)
    assert called(tmp_path, *words).stdout.splitlines()[-1].startswith("2 cells")
    listed = called(tmp_path, "faults", "--list", "two-too-many", SPECMATRIX_FILES=str(EXAMPLE))
    assert listed.stdout.startswith("two-too-many: two tokens more than max_new_tokens"), listed.stderr


GATES = """
from specmatrix.matrix.cells.own_values import register_value
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.registry import register_gate

class Paged:
    name, needs, thresholds = "paged", frozenset(), {}
    def applies(self, cell):
        return True
    def judge(self, prepared, run, baseline):
        numbers = {"share": 100 / (int(prepared.cell.page_size) - 8)}
        return Outcome("paged", State.PASS, numbers)

register_value("page_size", "8", "p8")
register_gate(Paged())
"""


def test_a_worker_loads_the_plug_in_and_a_gate_that_raises_fails_its_cell_alone(tmp_path: Path):
    (tmp_path / "mine.py").write_text(GATES, encoding="utf-8")
    words = ("--workers", "1", "--stage", "product", "--cells", "none.p8", "--cells", "none.p4", "--plugin", "mine.py")
    done = called(tmp_path, "run", *words)
    assert done.returncode == 1 and "1 passed, 1 failed" in done.stdout, done.stdout + done.stderr
    report = load(tmp_path / "out")
    gate, other = report["none.p8"].gate("paged"), report["none.p4"].gate("paged")
    assert gate is not None and other is not None and (gate.state, other.state) == ("FAIL", "PASS")
    assert gate.message.startswith("the gate raised ZeroDivisionError: division by zero") and "line 11)" in gate.message
    assert [one.name for one in report["none.p8"].gates if one.state != "PASS"] == ["paged"]
    assert "--plugin mine.py" in report["none.p8"].repro
    assert report.header.files == (f"mine.py {sha256(GATES.encode()).hexdigest()[:12]}",)
    # Who reads the report has no plug-in.
    compared = called(tmp_path, "compare", "out", "out")
    assert "2 same" in compared.stdout, compared.stdout + compared.stderr
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert report.header.files[0] in page


def test_pytest_collects_and_runs_the_cells_of_a_plug_in(tmp_path: Path):
    (tmp_path / "mine.py").write_text(GATES, encoding="utf-8")
    (tmp_path / "test_cells.py").write_text("from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n")
    options = ("-p", "specmatrix.matrix.plugin", "-p", "no:cacheprovider", "-q", "--specmatrix-plugin", "mine.py")
    words = (*options, "--specmatrix-cells", "none.p8")
    done = called(tmp_path, *words, module="pytest", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 failed" in done.stdout and "paged: FAIL: the gate raised ZeroDivisionError" in done.stdout, done.stdout
    assert "--plugin mine.py" in done.stdout
    (tmp_path / "mine.py").write_text("1 / 0", encoding="utf-8")
    done = called(tmp_path, *words, module="pytest", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "mine.py, line 1 cannot be loaded: ZeroDivisionError" in done.stdout + done.stderr, done.stdout


def test_an_installed_package_is_a_plug_in_by_its_entry_point(tmp_path: Path):
    place = tmp_path / "mine-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n", encoding="utf-8")
    (place / "entry_points.txt").write_text("[specmatrix.plugins]\nmine = mine_of_a_test\n", encoding="utf-8")
    (tmp_path / "mine_of_a_test.py").write_text(VALUE.format("8"), encoding="utf-8")
    path = os.pathsep.join((*sys.path, str(tmp_path)))
    assert "p8" in called(tmp_path, "axes", "--json", PYTHONPATH=path).stdout
    (tmp_path / "mine_of_a_test.py").write_text("1 / 0", encoding="utf-8")
    done = called(tmp_path, "axes", PYTHONPATH=path)
    assert done.returncode == 2 and done.stderr.startswith(
        "specmatrix: plug-in mine (mine_of_a_test) cannot be loaded: ZeroDivisionError: division by zero"
    )


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--speculative-algorithm-file", "no.py"), "algorithm file no.py does not exist; pass a Python file"),
        (
            ("--speculative-algorithm-file", str(COPY), "--subject", "vllm"),
            "--speculative-algorithm-file is for the reference engine, not 'vllm'",
        ),
        (("--plugin", "no.py", "--on", "auto"), "plug-in file no.py does not exist"),
    ],
)
def test_a_file_that_a_run_cannot_take_is_one_sentence(tmp_path, monkeypatch, capsys, options, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specmatrix.matrix.subjects.vllm.subject.VllmSubject.version", lambda subject: "1")
    assert main(["run", *options]) == 2
    assert capsys.readouterr().err.startswith(f"specmatrix: {sentence}")


def test_a_cluster_gets_no_file_of_the_users(tmp_path: Path):
    words = ("run", "--on", "127.0.0.1:1", "--cells", "none")
    for done in (
        called(tmp_path, *words, "--plugin", str(EXAMPLE)),
        called(tmp_path, *words, SPECMATRIX_FILES=str(EXAMPLE)),
        called(tmp_path, *words, "--speculative-algorithm-file", str(COPY)),
    ):
        assert done.returncode == 2 and "--on sends no file of yours to the cluster" in done.stderr, done.stderr


# Where a page holds several tokens its drafts are others, which only the acceptance can show.
PAGES = ("        ahead = place + 1 +", "        ahead = place + (self.page > 1) * 7 + 1 +")


def test_a_users_algorithm_has_cells_of_the_matrix_and_its_acceptance_is_judged(tmp_path: Path):
    text = COPY.read_text(encoding="utf-8").replace(*PAGES)
    text = text.replace(
        "        resolved = context.resolved\n",
        "        resolved = context.resolved\n        self.page = resolved.page_size\n",
    )
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    words = ("--speculative-algorithm-file", "mine.py", "--workers", "1", "--stage", "product")
    done = called(tmp_path, "run", *words, "--cells", "copy.s3.v2.pair", "--cells", "copy.s3.v2.p4.nocache.pair")
    assert done.returncode == 1 and "1 passed, 1 failed" in done.stdout, done.stdout + done.stderr
    report = load(tmp_path / "out")
    good, bad = (report[cell].gate("acceptance") for cell in ("copy.s3.v2.pair", "copy.s3.v2.p4.nocache.pair"))
    assert good is not None and good.state == "PASS" and good.numbers["turns"] == 2 and good.numbers["rounds"] > 10
    assert bad is not None and bad.state == "FAIL" and "differ in acceptance length from the default" in bad.message
    assert "--speculative-algorithm-file mine.py" in report["copy.s3.v2.pair"].repro


@pytest.mark.nightly
def test_a_users_algorithm_is_green_in_the_cells_of_a_pull_request(tmp_path: Path):
    done = called(tmp_path, "run", "--speculative-algorithm-file", str(COPY), "--stage", "pr")
    assert done.returncode == 0 and "0 failed" in done.stdout, done.stdout + done.stderr
    assert all(cell.axes["algorithm"] == "copy" for cell in load(tmp_path / "out"))


@pytest.mark.nightly
def test_the_example_is_green_and_its_gate_sees_its_fault(tmp_path: Path):
    cells = ("--stage", "smoke", "--cells", OF_BOTH)
    done = called(tmp_path, "run", "--plugin", str(EXAMPLE), *cells)
    assert done.returncode == 0 and "2 passed, 0 failed" in done.stdout, done.stdout + done.stderr
    done = called(tmp_path, "faults", "two-too-many", "--plugin", str(EXAMPLE), "--json")
    (found,) = json.loads(done.stdout)["faults"]
    assert "limits" in found["killed_by"]
