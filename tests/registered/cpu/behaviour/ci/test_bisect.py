"""`specmatrix bisect` in a real repository, whose commits have reports in place of engines."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from select import select

import pytest

from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.record import lost, record
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.store import ReportWriter

CELL = "none.length"
# The package of every commit: `run` copies the report that the commit has.
PACKAGE = """
import shutil, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
kind = Path("kind").read_text()
if kind == "hangs":
    import signal
    with Path("FIFO").open("w") as fifo:
        fifo.write("here")
        fifo.flush()
        signal.pause()
if kind == "broken":
    sys.exit("ImportError: no engine")
out.mkdir()
shutil.copy(f"REPORTS/{kind}/report.jsonl", out)
sys.exit(kind != "good")
"""


class Repository:
    """A repository with one commit of each kind, and something uncommitted that must stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        for kind in ("good", "bad", "infra"):
            self._report(folder / kind, kind)
        package = self.folder / "specmatrix"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        text = PACKAGE.replace("REPORTS", str(folder)).replace("FIFO", str(self.fifo))
        (package / "__main__.py").write_text(text)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "A")
        self.git("config", "user.email", "a@b")

    def _report(self, folder: Path, kind: str) -> None:
        prepared = prepare(Cell.from_id(CELL), "cpu", 0)
        state = State.PASS if kind == "good" else State.FAIL
        gate = Outcome("lossless", state, message="" if kind == "good" else "token 3 differs")
        judged = record(prepared, "PASS" if kind == "good" else "FAIL", outcomes=(gate,))
        with ReportWriter(folder, run_header("cpu", "smoke", 0, GATES)) as writer:
            writer.write(lost(prepared, "its worker died") if kind == "infra" else judged)

    def git(self, *words: str) -> str:
        around = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}
        done = subprocess.run(["git", *words], cwd=self.folder, env=around, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commits(self, *kinds: str) -> list[str]:
        """One commit after another; their hashes."""
        found = []
        for number, kind in enumerate(kinds):
            (self.folder / "kind").write_text(kind)
            (self.folder / "number").write_text(str(number))
            self.git("add", ".")
            self.git("commit", "-q", "-m", f"step {number}")
            found.append(self.git("rev-parse", "HEAD"))
        (self.folder / "number").write_text("not committed")
        self.before = self.state()
        return found

    def state(self) -> tuple[str, ...]:
        return tuple(
            self.git(*words)
            for words in (
                ("status", "--porcelain"),
                ("rev-parse", "--abbrev-ref", "HEAD"),
                ("worktree", "list"),
                ("for-each-ref",),
            )
        )


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Repository:
    made = Repository(tmp_path)
    monkeypatch.chdir(made.folder)
    # A hook, and a variable as a hook of git would set it.
    hook = made.folder / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    yield made
    assert made.state() == made.before
    assert not list(scratch.iterdir()) and not (tmp_path / "hooked").exists()


def bisect(good: str, bad: str) -> int:
    return main(["bisect", good, bad, "--cells", CELL])


def test_the_first_bad_commit_is_found_past_one_that_does_not_run(repository, capsys):
    hashes = repository.commits("good", "good", "broken", "good", "bad", "bad")
    assert bisect(hashes[0], "HEAD") == 0
    out, err = capsys.readouterr()
    first, fail, repro = out.splitlines()
    assert first.startswith(f"first bad commit: {hashes[4][:7]} step 4 (A, ")
    assert fail == f"FAIL {CELL}: lossless: token 3 differs" and f"run --cells '{CELL}'" in repro
    tried = [line.split()[:4:3] for line in err.splitlines()]
    assert tried[:2] == [["bad:", "5"], ["good:", "0"]] and ["bad:", "4"] in tried and ["good:", "3"] in tried


def test_commits_that_do_not_run_may_hide_it(repository, capsys):
    hashes = repository.commits("good", "broken", "infra", "bad")
    assert bisect(hashes[0], hashes[3]) == 1
    out, err = capsys.readouterr()
    assert "the first bad commit is one of 3 commits, since the others do not run:" in out.splitlines()
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["step"] * 3
    assert sorted(line.split()[0] for line in err.splitlines()) == ["bad:", "good:", "skipped:", "skipped:"]


def test_a_crash_is_bad_where_the_bad_commit_crashes(repository, capsys):
    hashes = repository.commits("good", "infra", "infra")
    assert bisect(hashes[0], hashes[2]) == 0
    assert capsys.readouterr().out.startswith(f"first bad commit: {hashes[1][:7]} step 1 ")


def test_ends_that_are_not_good_and_bad_are_refused(repository, capsys, tmp_path, monkeypatch):
    good, bad, broken, last = repository.commits("good", "bad", "broken", "good")

    def refused(*ends: str) -> str:
        assert bisect(*ends) == 2
        return capsys.readouterr().err.splitlines()[-1].removeprefix("specmatrix: ")

    assert refused(good, last) == f"'{last}' is not bad: no cell is red"
    assert refused(good, broken) == f"'{broken}' is not bad: it does not run: ImportError: no engine"
    assert refused(bad, bad) == f"'{bad}' is not an ancestor of '{bad}'; give an older good commit"
    assert refused(last, bad) == f"'{last}' is not an ancestor of '{bad}'; give an older good commit"
    assert refused("--x", bad).endswith("see `specmatrix bisect --help`")
    assert refused("none", bad) == f"'none' is not a commit of {repository.folder}"
    monkeypatch.chdir(tmp_path)
    assert refused(good, bad).startswith(f"git rev-parse failed in {tmp_path}: fatal: not a git repository")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(good, bad) == "git is not installed"
    monkeypatch.undo()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_leaves_nothing(received, repository):
    hashes = repository.commits("good", "hangs")
    words = ["bisect", *hashes, "--cells", CELL]
    command = [sys.executable, "-P", "-c", "import sys; from specmatrix.cli import main; sys.exit(main())", *words]
    reader = os.open(repository.fifo, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert select([reader, process.stderr], [], [], 60)[0] == [reader] and os.read(reader, 4) == b"here"
        process.send_signal(received)
        assert process.stderr.read() == "interrupted\n"
    # It has ended too: a living writer would make this raise.
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert process.returncode == 128 + received
