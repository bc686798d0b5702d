"""`specmatrix run` while it and its workers are killed at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from select import select
from typing import NamedTuple

import pytest

from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import PARTIAL_FILE, load

RUN = "import sys; from specmatrix.cli import main; sys.exit(main())"
SCRIPTED = f"""
from specmatrix.ci import local
from tests.support import scripted_workers
local.work = scripted_workers.passes
{RUN}
"""
# The share of the kills that must reach a process that still runs, of a run and of a worker.
LEAST = 0.3
# In the environment of a run and of all that it starts, whose sessions are others.
MARK = "SPECMATRIX_KILLED_RUN"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class PlannedKill(NamedTuple):
    """A signal to the run or to one of its workers, sent some seconds after its process or the report was started."""

    number: signal.Signals
    victim: str
    begun: bool
    seconds: float


class Ended(NamedTuple):
    """How a run ended. hit: a process got the signal."""

    hit: bool
    status: int
    out: str
    said: str


def draw(rng: random.Random, most: float) -> PlannedKill:
    victim, begun = rng.choice(("run", "worker")), rng.random() < 0.5
    # Until the report is begun a run loads its modules.
    most = most if begun or victim == "worker" else 1.5
    # Ctrl-C does not reach workers, which have sessions of their own.
    numbers = SIGNALS if victim == "run" else SIGNALS[:2]
    return PlannedKill(rng.choice(numbers), victim, begun, round(rng.random() * most, 3))


def run(code: str, out: Path, kill: PlannedKill | None = None) -> Ended:
    """Run smoke cells over two workers and kill the process that `kill` names if it still exists. No process outlives
    the run."""
    words = ["run", "--stage", "smoke", "--cells", "algorithm=none", "--workers", "2", "--out", str(out), "--json"]
    pipe, hit, before = subprocess.PIPE, False, written(out)
    command, marked = [sys.executable, "-c", code, *words], os.environ | {MARK: str(out)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=marked) as process:
        if kill is not None:
            while process.poll() is None and not (
                written(out) != before if kill.begun else kill.victim == "run" or workers(process.pid)
            ):
                _pause(process, 0.002)
            _pause(process, kill.seconds)
            # The run has ended where it has no workers; who asks for them too late proves nothing (`LEAST`).
            for victim in [process.pid] if kill.victim == "run" else workers(process.pid)[-1:]:
                with suppress(ProcessLookupError):
                    os.kill(victim, kill.number)
                    hit = True
        try:
            # Workers hold the pipes too, so this also waits for them.
            output = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            left = members(out)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{kill} left processes {left} behind") from None
    for pid in members(out):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            ends, _, _ = select([descriptor], [], [], 10)
            os.close(descriptor)
            assert ends, Path(f"/proc/{pid}/cmdline").read_bytes()
    return Ended(hit, process.returncode, *output)


def written(out: Path) -> int:
    """When the unfinished report was last written, in nanoseconds; 0 if there is none."""
    with suppress(FileNotFoundError):
        return (out / PARTIAL_FILE).stat().st_mtime_ns
    return 0


def _pause(process: subprocess.Popen[str], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def members(out: Path) -> list[int]:
    """The living processes of a run that writes to `out`, by id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={out}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(found)


def workers(run: int) -> list[int]:
    """The living children of a run, which has no others."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The command's name, in parentheses, may hold anything.
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == run and state not in "ZX":
                found.append(int(path.parent.name))
    return sorted(found)


def judge(kill: PlannedKill, ended: Ended, out: Path, cells: set[str]) -> None:
    """Invariants after a kill: a report is complete or refused in one sentence, and only a complete one is green."""
    status, said = ended.status, ended.said
    if (out / "report.jsonl").exists():  # this run's, or that of the one before
        assert set(load(out / "report.jsonl").lines) == cells
    try:
        report = load(out)
    except ReportError as refusal:
        assert "did not finish" in str(refusal) and "\n" not in str(refusal)
        assert (kill.victim, ended.hit, ended.out) == ("run", True, "")
        # Before the command line is there, SIGTERM ends Python as SIGKILL does, and SIGINT with Python's own traceback.
        early = not kill.begun and not said.startswith("interrupted")
        bare = {signal.SIGKILL} | ({signal.SIGTERM, signal.SIGINT} if early else set())
        own = {1} if early and kill.number == signal.SIGINT else set()
        assert status in {-kill.number if kill.number in bare else 128 + kill.number} | own
        # A worker that has read nothing yet when the run dies says so.
        assert kill.number in bare or (said.startswith("interrupted") and said.count("\n") == 1), said
        return
    lost = [cell for cell in report if cell.state == "INFRA"]
    assert len(lost) <= 1 and all(cell.state == "PASS" for cell in report if cell not in lost)
    if kill.victim == "worker":
        assert "Traceback" not in said, said
        assert status == json.loads(ended.out)["red"] == len(lost)
        assert not lost or lost[0].error == f"the cell has no result: its worker died with exit code -{kill.number:d}"
        # A worker that still starts is replaced, and costs nothing.
        assert not lost or kill.begun or kill.seconds > 0.02
    else:  # The report was there already.
        assert status in (0, -kill.number, 128 + kill.number)


@pytest.mark.nightly
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("code", "kills", "most"),
    [pytest.param(SCRIPTED, 200, 0.3, id="workers that answer at once"), pytest.param(RUN, 40, 6, id="real workers")],
)
def test_after_any_kill_the_report_is_complete_or_refused_and_the_next_run_works(code, kills, most, tmp_path):
    first = run(code, tmp_path)
    assert first.status == 0, first.said
    chosen = set(load(tmp_path).lines)
    assert len(chosen) > 5
    rng, drawn, hits = random.Random(7), Counter[str](), Counter[str]()
    for number in range(kills):
        kill = draw(rng, most)
        ended = run(code, tmp_path, kill)
        drawn[kill.victim] += 1
        hits[kill.victim] += ended.hit
        try:
            judge(kill, ended, tmp_path, chosen)
        except AssertionError as error:
            raise AssertionError(f"kill {number}, {kill}: {ended}") from error
    assert all(hits[victim] >= max(1, LEAST * drawn[victim]) for victim in ("run", "worker")), (hits, drawn)
    last = run(code, tmp_path)
    assert (last.status, json.loads(last.out)["pass"]) == (0, len(chosen)), last.said
    assert set(load(tmp_path).lines) == chosen
