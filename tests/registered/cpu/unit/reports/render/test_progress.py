import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path
from threading import Event

import pytest

from specmatrix.reports.render import console
from specmatrix.reports.render.console import counting, waiting


def shown(monkeypatch: pytest.MonkeyPatch, tty: bool) -> str:
    """What both progress displays write to stderr, a terminal or a pipe."""
    reader, writer = pty.openpty() if tty else os.pipe()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w"))
    with waiting("loading a[/b]"):
        pass
    times = iter([100, 126])
    with counting(3, "cell", lambda: next(times)) as advance:
        advance("one", 2, red=1)
    sys.stderr.close()
    monkeypatch.undo()
    text = b""
    with os.fdopen(reader, "rb", buffering=0) as file:
        while part := _read(file.fileno()):
            text += part
    return text.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a terminal whose other end is closed
        return b""


def test_a_terminal_shows_the_task_and_its_progress(monkeypatch: pytest.MonkeyPatch):
    text = shown(monkeypatch, tty=True)
    assert "loading a[/b]" in text and "one" in text and "2/3" in text
    assert "1 red" in text and "about 13 s left" in text


def test_a_pipe_shows_nothing_soon(monkeypatch: pytest.MonkeyPatch):
    assert shown(monkeypatch, tty=False) == ""


def test_without_a_terminal_a_line_every_30_seconds_shows_the_progress(capsys: pytest.CaptureFixture[str]):
    times = iter([100, 129, 130, 159, 160, 1300, 1329])
    with counting(1200, "cell", lambda: next(times)) as advance:
        advance("starting", 0, red=0)  # at 129
        advance("eagle3", 0, red=0)
        advance(None, 7, red=1)
        advance(None, 1, red=2)
        advance(None, 1100, red=1005)
        advance(None, 92, red=1005)
    assert capsys.readouterr().err.splitlines() == [
        "0 of 1,200 cells, 0 red, after 30 s",
        "8 of 1,200 cells, 2 red, after 1 min 0 s, about 149 min 0 s left",
        "1,108 of 1,200 cells, 1,005 red, after 20 min 0 s, about 1 min 40 s left",
    ]
    times = iter([0, 30])
    with counting(1, "trial", lambda: next(times)) as advance:
        advance("trial 1")
    assert capsys.readouterr().err == "1 of 1 trial, after 30 s\n"
    times = iter([0, 30, 60])
    with counting(5, "trial", lambda: next(times), first="loading") as advance:
        advance("starting", 0)
        advance("trial 4", 4)
    first, second = capsys.readouterr().err.splitlines()
    assert (first, second) == ("0 of 5 trials, after 30 s, loading", "4 of 5 trials, after 1 min 0 s, about 15 s left")


def test_without_a_terminal_a_line_every_30_seconds_names_the_task(monkeypatch: pytest.MonkeyPatch):
    class BrokenPipe(StringIO):
        def flush(self) -> None:
            flushed.set()

    flushed = Event()
    assert console.LINE_SECONDS == 30
    monkeypatch.setattr(console, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", pipe := BrokenPipe())
    with waiting("loading"):
        assert flushed.wait(10)
    assert re.match(r"loading, after 0\.0\d s\n", pipe.getvalue())


def test_lines_that_cannot_be_written_do_not_end_the_work(monkeypatch: pytest.MonkeyPatch):
    times = iter([0, 30, 60])
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        with counting(2, "cell", lambda: next(times)) as advance:
            advance("one")
            advance("two")
        monkeypatch.undo()
