"""Commands in an environment that lacks a locale, streams, descriptors, permissions or time."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from specmatrix.cli import main
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.tiers import repro
from specmatrix.matrix.cli import generate
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.reports.render.console import as_called
from specmatrix.reports.schema import CellRecord, GateResult, GateState, StartRecord
from specmatrix.reports.store import ReportWriter, load

PLAIN = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
COMMAND = (sys.executable, "-m", "specmatrix")
# From prctl(2) and capabilities(7): what lets root read every file.
DROP_CAPABILITY, OVERRIDES = 24, (1, 2)


def write(place: Path, state: GateState = "PASS", message: str = "", cell: str = "dflash") -> None:
    """A report of one cell."""
    with ReportWriter(place, run_header("cpu", "pr", 0, GATES)) as writer:
        gate = GateResult("lossless", state, {}, None, message)
        axes = {"algorithm": cell}
        writer.write(CellRecord(cell, state, StartRecord({}), axes, repro(cell, "cpu", 0), (gate,), {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reports `base` and `é`; the second is red with messages beyond ASCII."""
    place = tmp_path_factory.mktemp("surroundings")
    write(place / "base")
    write(place / "é", "FAIL", "größer → 1")
    return place


def run(words: str, folder: Path, before: Callable[[], None] | None = None, **changes: object):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": os.environ} | changes
    return subprocess.run([*COMMAND, *words.split()], cwd=folder, check=False, preexec_fn=before, **options)


def test_a_locale_of_ascii_shows_and_writes_everything(folder: Path):
    done = run("compare base é --out é/comparison", folder, env=PLAIN)
    assert (done.returncode, done.stderr) == (1, b"")
    assert rb"lossless PASS -> FAIL: gr\xf6\xdfer \u2192 1" in done.stdout
    for name in ("comparison.md", "comparison.html"):
        assert "größer → 1" in (folder / "é" / "comparison" / name).read_text(encoding="utf-8").replace("-&gt;", "")
    accepted = folder / "accepted.json"
    accepted.write_text('[{"kind":"lost","what":"x","reason":"größer","expiry":"2026-12-31"}]', encoding="utf-8")
    assert run("compare base base --acknowledge accepted.json", folder, env=PLAIN).returncode == 0
    assert run("compare base ö", folder, env=PLAIN).stderr.startswith(rb"specmatrix: cannot read \udcc3\udcb6: No such")


def test_a_question_is_read_as_utf_8_in_every_locale(monkeypatch, capsys: pytest.CaptureFixture[str]):
    def stop(question: str) -> None:
        raise ConfigError(question)

    monkeypatch.setattr(generate, "prompt_of", stop)
    for question in ("Größe?", "Größe?".encode().decode("ascii", "surrogateescape")):
        assert main(["generate", question]) == 2
        assert capsys.readouterr().err == "specmatrix: Größe?\n"
    assert main(["generate", "a\udcff"]) == 2
    assert capsys.readouterr().err == "specmatrix: the question 'a\\udcff' is not UTF-8 text\n"


@pytest.mark.parametrize(("words", "status"), [("compare base é", 1), ("compare base x", 2)])
def test_closed_streams_leave_the_exit_status(words: str, status: int, folder: Path):
    def close() -> None:
        os.closerange(0, 3)

    assert run(words, folder, close, stdout=None, stderr=None).returncode == status


def test_no_file_takes_the_place_of_a_closed_stream(folder: Path):
    """A library's message would be written to the file."""
    code = "import os, sys; from specmatrix.cli import main; main(['compare', 'base', 'base', '--out', 'o'])"
    code += "; print(os.readlink('/proc/self/fd/1'), file=sys.stderr)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=folder, stderr=subprocess.PIPE, check=False, preexec_fn=partial(os.close, 1))
    assert done.stderr == b"/dev/null\n"


def test_a_full_disk_under_both_streams_leaves_the_exit_status(folder: Path):
    with Path("/dev/full").open("wb") as full:
        assert run("compare base base", folder, stdout=full, stderr=full).returncode == 2
        done = run("compare base é --json", folder, stdout=full)
    assert (done.returncode, done.stderr) == (2, b"specmatrix: cannot write the output: No space left on device\n")


@pytest.mark.nightly
def test_too_few_descriptors_are_one_sentence(folder: Path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))

    assert run("compare base base", folder, limit).returncode == 0
    done = run("run --cells none.length --workers 1 --out limited", folder, limit)
    sentence = b"specmatrix: the system's limits are reached (Too many open files); raise them, see `ulimit -a`\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", sentence)


def test_too_little_memory_is_one_sentence_and_not_red(folder: Path, monkeypatch, capsys):
    def exhaust(*_: object) -> None:
        raise MemoryError

    monkeypatch.chdir(folder)
    monkeypatch.setattr("specmatrix.matrix.cli.compare.compare_reports", exhaust)
    assert main(["compare", "base", "base"]) == 2
    sentence = "specmatrix: memory is exhausted; free some, or raise the limit, see `ulimit -a`\n"
    assert capsys.readouterr() == ("", sentence)


def test_what_may_not_be_read_is_one_sentence(folder: Path):
    def obey() -> None:
        for capability in OVERRIDES:
            ctypes.CDLL(None).prctl(DROP_CAPABILITY, capability, 0, 0, 0)

    locked = folder / "locked"
    locked.mkdir(mode=0)
    usage = "see `specmatrix compare --help`"
    for words, sentence in {
        "compare locked/run base": "cannot read locked/run: Permission denied",
        "compare locked base": f"Invalid value for 'BASE': path 'locked' is not readable; {usage}",
        "compare base base --out locked": f"--out: path 'locked' is not readable; {usage}",
        "contract locked/file.py": "cannot use locked/file.py: Permission denied",
    }.items():
        done = run(words, folder, obey)
        assert (done.returncode, done.stderr.decode()) == (2, f"specmatrix: {sentence}\n")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("moment", "sentence"),
    [("specmatrix.cli", "specmatrix: interrupted"), ("specmatrix.reports.render.terminal", "interrupted")],
)
def test_ctrl_c_while_a_module_is_imported_ends_the_command(moment: str, sentence: str, folder: Path):
    """The second module drops the exception, as libraries do with optional dependencies."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {moment!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ['compare', 'base', 'base']
from specmatrix.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{sentence}\n")


@pytest.mark.nightly
def test_the_printed_repro_leaves_the_report_that_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a[/b]").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "a[/b]"))
    write(tmp_path / "out", cell="none")
    report = tmp_path / "out" / "report.jsonl"
    whole, line = report.read_bytes(), as_called(load("out")["none"].repro)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (again,) = (path for path in tmp_path.rglob("report.jsonl") if path != report)
    assert done.stdout.endswith(f"\nreport: {again.with_name('report.html')}\n")
    assert list(load(again).lines) == ["none"] and load(again)["none"].repro == load("out")["none"].repro
    assert report.read_bytes() == whole
    # The shell gives every run of the line another folder.
    folders = {subprocess.check_output(f"echo {line.partition('--out ')[2]}", shell=True) for _ in range(2)}
    assert len(folders) == 2
