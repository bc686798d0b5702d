"""`specmatrix contract` runs a user's file in a child process: whatever it does there, the verdict is right."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.child_process import ChildProcess
from specmatrix.cli import main
from specmatrix.matrix.cli.subjects import NoVerdictError, results

TEXT = (HOME / "examples" / "copy_the_prompt.py").read_text(encoding="utf-8")
PROPOSE = "        text = batch.carried"
# A process that is alive holds the FIFO's write end open.
HOLD = "held = open({fifo!r}, 'w')\nheld.write('up\\n')\nheld.flush()\n"


def written(folder: Path, top: str = "", propose: str = "pass", old: str = "", new: str = "") -> str:
    """The example with statements at its top level, one more in `propose`, and a change."""
    head, _, rest = TEXT.partition(PROPOSE)
    assert TEXT.count(old) == 1 or not old
    body = f"{head}        {propose}\n{PROPOSE}{rest}"
    register = "register_algorithm(COPY, CopyDrafter"
    file = folder / "mine.py"
    file.write_text((body.replace(old, new) if old else body).replace(register, f"{top}\n{register}"), encoding="utf-8")
    return str(file)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.nightly
def test_an_honest_file_passes_though_it_floods_and_leaves_processes_and_threads(tmp_path, capfd, fifo, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("1 / 0", encoding="utf-8")  # a file of the folder replaces no module
    top = HOLD.format(fifo=str(fifo)) + (
        "import os, sys, threading\n"
        "if not os.fork():\n    threading.Event().wait()\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "for _ in range(8): sys.stdout.write('x' * 2**20)\n"
    )
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["contract", written(tmp_path, top)]) == 0
    out, err = capfd.readouterr()
    *starts, last = out.splitlines()
    assert last == "COPY satisfies the contract in 5 engine starts" and len(starts) == 5 and err == ""
    assert all(re.fullmatch(r"  chain, .* PASS +[12]\.\d\d tokens per round", line) for line in starts)
    os.set_blocking(reader, True)
    assert os.read(reader, 9) == b"up\n" and os.read(reader, 9) == b"", "every process has ended"
    os.close(reader)


STARTS = (
    {"algorithm": "A", "start": "chain, v2", "tokens_per_round": 1.25, "violations": ["it did this", "and that"]},
    {"algorithm": "A", "start": "tree, v2", "tokens_per_round": 2.0, "violations": []},
    {"algorithm": "B", "start": "no drafts, v2", "tokens_per_round": None, "violations": []},
)


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """The command's process writes these lines and ends."""

    def write(*lines: object) -> None:
        text = "\n".join(json.dumps(line) for line in lines)
        code = f"import sys\nprint('my own\\x1b[2J')\nopen(sys.argv[1], 'a').write({text + chr(10)!r})\n"
        (tmp_path / "pretended.py").write_text(code, encoding="utf-8")

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("specmatrix.matrix.cli.subjects.CHILD", "pretended")
    return write


def test_a_violation_is_red_and_the_end_of_the_output_is_shown(pretended, capsys):
    pretended(*STARTS, {"refused": None})
    assert main(["contract", "mine.py"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "  chain, v2                                FAIL  1.25 tokens per round",
        "    it did this",
        "    and that",
        "  tree, v2                                 PASS  2.00 tokens per round",
        "A VIOLATES the contract in 1 of 2 engine starts",
        "  no drafts, v2                            PASS",
        "B satisfies the contract in 1 engine start",
        "end of the output:",
        "  my own\ufffd[2J",
    ]


def test_a_process_that_ends_in_the_middle_is_red_after_the_results_so_far(pretended, capsys):
    pretended(*STARTS[1:])
    assert main(["contract", "mine.py"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "  tree, v2                                 PASS  2.00 tokens per round",
        "A satisfies the contract in 1 engine start",
        "  no drafts, v2                            PASS",
        "NO VERDICT: the process ended with exit status 0 before the last result",
        "end of the output:",
        "  my own\ufffd[2J",
    ]


def test_json_holds_the_same(pretended, capsys):
    pretended(*STARTS, {"refused": None})
    assert main(["contract", "mine.py", "--json"]) == 1
    starts = [{name: value for name, value in start.items() if name != "algorithm"} for start in STARTS]
    assert json.loads(capsys.readouterr().out) == {
        "schema": 2,
        "algorithms": [
            {"name": "A", "passed": False, "starts": starts[:2]},
            {"name": "B", "passed": True, "starts": starts[2:]},
        ],
        "no_verdict": None,
        "output": "my own\ufffd[2J",
    }


def test_what_the_process_refuses_is_one_sentence(pretended, capsys):
    pretended({"refused": "no such thing"})
    assert main(["contract", "mine.py"]) == 2
    assert capsys.readouterr().err == "specmatrix: no such thing\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("statement", "timeout", "reason"),
    [
        ("print('in propose'); __import__('os')._exit(0)", "120", "ended with exit status 0 before the last result"),
        ("while True: pass", "6", "gave no result for 6 s and was killed"),
    ],
)
def test_a_file_that_ends_its_process_or_hangs_is_not_judged(tmp_path, capsys, monkeypatch, statement, timeout, reason):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert main(["contract", written(tmp_path, propose=statement), "--timeout", timeout, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["algorithms"], said["no_verdict"]) == (2, [], f"the process {reason}")
    assert said["output"].startswith("in propose") == statement.startswith("print")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.nightly)]
)
def test_nothing_is_left_of_a_command_that_is_interrupted_or_killed(tmp_path, fifo, number, status):
    """Runs at the top level of the file, where the process could outlive the command."""
    file = tmp_path / "mine.py"
    file.write_text(HOLD.format(fifo=str(fifo)) + "import os\nos.fork()\nwhile True: pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "specmatrix", "contract", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        process.send_signal(number)
        assert reader.read() == "", "the end of the text is the end of every process"
    _, stderr = process.communicate()
    assert process.returncode == status
    assert stderr == (f"interrupted while {file} ran, which may have sent the signal\n" if status == 130 else "")


def child(file: Path, code: str) -> ChildProcess:
    file.touch()
    start = "import os, pathlib, signal, sys, time; file = pathlib.Path(sys.argv[1]).open('a')\n"
    return ChildProcess([sys.executable, "-c", start + code, str(file)])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", "the process ended with exit status 0 before the last result"),
        ("sys.exit(3)", "the process ended with exit status 3 before the last result"),
        ("os.kill(os.getpid(), 9)", "the process was killed by SIGKILL before the last result"),
        ("os.kill(os.getpid(), 40)", "the process was killed by signal 40 before the last result"),
        ("while True: pass", "the process gave no result for 0.5 s and was killed"),
        ("file.write('{\"start\": ')", "the process ended with exit status 0 before the last result"),
    ],
)
def test_how_a_process_without_a_verdict_ended_is_reported(tmp_path, code, reason):
    process = child(tmp_path / "file", code)
    with pytest.raises(NoVerdictError) as caught:
        [*results(process, tmp_path / "file", 0.5 if "while" in code else 60)]
    process.stop()
    assert str(caught.value) == reason


def test_results_come_before_the_end_and_after_the_last_one_nothing_counts(tmp_path):
    last = 'file.write(\'{"n": 1}\\n{"n": 2}\\n{"refused": null}\\n\'); file.flush()\nwhile True: pass'
    process = child(tmp_path / "file", last)
    assert [*results(process, tmp_path / "file", 60)] == [{"n": 1}, {"n": 2}]
    process.stop()


@pytest.mark.nightly
@pytest.mark.parametrize(("top", "propose", "violation"), [
    ("import os; os.chdir('/')", "pass", "the import of {file} changed the working directory from .* to "),
    ("", "import random; random.seed(3)", "the drafter of COPY changed Python's random number generator"),
])  # fmt: skip
def test_a_process_wide_change_by_a_file_is_a_violation(tmp_path, capsys, top, propose, violation):
    file = written(tmp_path, top, propose)
    assert main(["contract", file]) == 1
    assert re.search(violation.format(file=re.escape(file)), capsys.readouterr().out)


@pytest.mark.nightly
def test_standard_input_is_empty(tmp_path, capsys):
    file = written(tmp_path, "input('name: ')")
    assert main(["contract", file, "--timeout", "30"]) == 2
    assert "EOFError" in capsys.readouterr().err
