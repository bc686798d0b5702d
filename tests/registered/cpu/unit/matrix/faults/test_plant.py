"""Processes of trials: their last output, their time limit, and that all of them end."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specmatrix.matrix.faults.plant import OUTPUT_TAIL, STOPPED, Processes

SAY = "import pathlib, sys, time; pathlib.Path('started').touch(); time.sleep(600)"


def run(processes: Processes, folder: Path, code: str, seconds: float = 60.0) -> str | None:
    return processes.run([sys.executable, "-c", code], folder, os.environ, seconds)


def test_a_process_says_how_it_ended(tmp_path: Path):
    assert run(Processes(), tmp_path, "import sys; print('x' * 100_000, file=sys.stderr)") is None
    words = run(Processes(), tmp_path, "import sys; sys.exit('é' * 5000 + 'gone')")
    assert words is not None and words.startswith("exit status 1: é") and words.endswith("gone")
    assert len(words) == OUTPUT_TAIL + len("exit status 1: ")
    assert run(Processes(), tmp_path, SAY, seconds=0.2) == "the process was still running after 0.2 s"


@pytest.mark.parametrize(("grows", "ended"), [((1, 1, 1), True), ((1, 0, 1), False), ((0, 1, 1), False)])
def test_the_limit_is_between_two_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows, ended):
    file, waits = tmp_path / "results", iter(grows)

    class Scripted:
        """Writes during each wait, or not, and ends after the last."""

        def __init__(self, *_: object) -> None:
            pass

        def wait(self, seconds: float) -> int | None:
            assert seconds == 9.0
            grown = next(waits, None)
            with file.open("a") as out:
                out.write("x" * (grown or 0))
            return 0 if grown is None else None

        def stop(self) -> None:
            pass

    monkeypatch.setattr("specmatrix.matrix.faults.plant.ChildProcess", Scripted)
    told = Processes().run(["x"], tmp_path, {}, 9.0, results=file)
    assert told == (None if ended else "the process was still running after 9 s without a result")


def test_stopping_ends_running_trials_and_starts_none(tmp_path: Path):
    processes = Processes()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, processes, tmp_path, SAY)
        while not (tmp_path / "started").exists() and not waiting.done():
            os.sched_yield()
        processes.stop()
        assert waiting.result() == "exit status -9: "
    assert run(processes, tmp_path, "") == STOPPED
