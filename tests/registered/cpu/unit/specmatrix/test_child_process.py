"""A child process, whatever it does, ends when it should and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from specmatrix import child_process
from specmatrix.child_process import OUTPUT_TAIL, ChildProcess, users_environment

# A process that is alive holds the FIFO's write end open.
HOLDS = "import os, sys; held = open(sys.argv[1], 'w'); held.write('up\\n'); held.flush()\n"
FOREVER = "while True: pass\n"
GRANDCHILDREN = HOLDS + "for _ in range(3): os.fork()\n"
STARTER = """
import sys
from specmatrix import child_process
from specmatrix.child_process import ChildProcess
ChildProcess([sys.executable, "-c", *sys.argv[1:]]).wait(600)
"""
WITH_PARENT = "from specmatrix.exit_with_parent import exit_with_parent\nexit_with_parent()\n"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def start(code: str, *arguments: object) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code, *map(str, arguments)])


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_how_it_ended_is_reported(code: str, status: int):
    process = start(code)
    assert process.wait(60) == status
    process.stop()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_its_cpu_time_is_that_of_its_group(fifo: Path):
    process = start(GRANDCHILDREN + FOREVER, fifo)
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        before = process.cpu_seconds()
        assert before is not None
        while (now := process.cpu_seconds()) is not None and now < before + 0.2:
            assert process.wait(0) is None
        process.stop()
    assert now is not None


def test_a_paused_group_is_suspended_until_it_is_stopped(fifo: Path):
    process = start(HOLDS + "held.write(f'{os.getpid()}\\n'); held.flush()\n" + FOREVER, fifo)
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        pid = int(reader.readline())
        process.pause()
        how, end = os.WSTOPPED | os.WNOWAIT | os.WNOHANG, monotonic() + 30
        while (found := os.waitid(os.P_PID, pid, how)) is None and monotonic() < end:
            pass
        process.stop()
        assert found is not None and found.si_status == signal.SIGSTOP
        assert reader.read() == ""
    assert process.wait(0) == -signal.SIGKILL


@pytest.mark.parametrize("code", [GRANDCHILDREN + FOREVER, GRANDCHILDREN + "if os.fork(): os._exit(0)\n" + FOREVER])
def test_its_child_processes_end_with_it(fifo: Path, code: str):
    """Whether the process itself still runs, or only processes that it started."""
    process = start(code, fifo)
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        process.wait(0.2)
        process.stop()
        assert reader.read() == "", "the end of the text is the end of every process"


def test_a_flood_of_output_is_read_and_its_end_is_kept():
    process = start("import sys\nfor _ in range(100): sys.stdout.write('x' * 2**20)\nsys.stderr.write('é!\\n')")
    assert process.wait(60) == 0
    process.stop()
    text = process.output_end(OUTPUT_TAIL)
    assert text.endswith("xxé!") and OUTPUT_TAIL - 9 < len(text) <= OUTPUT_TAIL and process.output_end(2) == "é!"


@pytest.mark.parametrize("leave", ["os.setsid()", "os.setpgrp()"])
def test_a_process_that_left_the_group_ends_too(fifo: Path, leave: str):
    code = HOLDS + f"if not os.fork():\n    {leave}\n    held.write('left\\n'); held.flush()\n    " + FOREVER
    process, other = start(code, fifo), start("import time; time.sleep(600)")
    with fifo.open() as reader:
        assert reader.readline() == "up\n" and reader.readline() == "left\n"
        process.wait(60)
        process.stop()
        assert reader.read() == ""
    assert other.wait(0) is None
    other.stop()


def test_a_killed_parent_ends_the_process_and_what_it_started(fifo: Path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, WITH_PARENT + GRANDCHILDREN + FOREVER, str(fifo)])
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        starter.kill()
        assert reader.read() == ""
    starter.wait()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system does not tell")
def test_what_a_process_left_behind_that_starts_some_itself_ends_with_the_first(fifo: Path):
    """A child process of a child process has a group and a mark of its own; the first one kills it all the same."""
    starts = "import sys\nfrom specmatrix.child_process import ChildProcess\n"
    code = f"{starts}ChildProcess([sys.executable, '-c', {HOLDS + FOREVER!r}, sys.argv[1]])\n"
    process = start(f"import os\n{code}os._exit(0)", fifo)
    with fifo.open() as reader:
        assert reader.readline() == "up\n" and process.wait(60) == 0
        process.stop()
        assert reader.read() == ""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system does not tell")
@pytest.mark.parametrize(("passes", "statuses"), [(100, [-signal.SIGKILL] * 3), (1, [None])])
def test_what_a_process_starts_before_it_is_killed_is_killed_too(fifo: Path, monkeypatch, passes: int, statuses: list):
    """Each of the first three starts another one; the passes have an end, whatever is started."""
    started: dict[int, subprocess.Popen[bytes]] = {}
    kill = os.kill

    def start_and_kill(pid: int, number: int) -> None:
        if pid not in started and len(started) < 3:
            found = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            started[pid] = subprocess.Popen(["sleep", "600"], env=dict(one.split("=", 1) for one in found if one))
        kill(pid, number)

    monkeypatch.setattr(child_process, "PASSES", passes)
    process = start(
        HOLDS + "if not os.fork():\n    os.setsid()\n    held.write('left\\n'); held.flush()\n    " + FOREVER, fifo
    )
    with fifo.open() as reader:
        assert reader.readline() == "up\n" and reader.readline() == "left\n"
        process.wait(60)
        monkeypatch.setattr(os, "kill", start_and_kill)
        process.stop()
        monkeypatch.undo()
        assert reader.read() == ""
    try:
        assert [one.wait(10) if passes > 1 else one.poll() for one in started.values()] == statuses
    finally:
        for one in started.values():
            one.kill()
            one.wait()


@pytest.mark.parametrize("path", [None, "/theirs"])
def test_a_users_command_does_not_import_from_this_process(path: str | None, monkeypatch: pytest.MonkeyPatch):
    """A server of another Python would import this one's packages in place of its own."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    assert users_environment().get("PYTHONPATH") == path
    process, connection = child_process.start(send_environments)
    try:
        assert connection.recv()[0] and connection.recv() == path
    finally:
        connection.close()
        process.stop()


def send_environments(connection: Connection[Any, Any]) -> None:
    connection.send(os.environ["PYTHONPATH"])
    connection.send(users_environment().get("PYTHONPATH"))
