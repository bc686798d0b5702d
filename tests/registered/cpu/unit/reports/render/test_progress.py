import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path
from threading import Event

import pytest

from specmatrix.reports.render import progress
from specmatrix.reports.render.progress import Remaining, counting, waiting


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
    times = iter([0, 30])
    with counting(5, "trial", lambda: next(times)) as advance:
        advance("trial 4", 4)
    assert capsys.readouterr().err == "4 of 5 trials, after 30 s, under 10 s left\n"


def test_without_a_terminal_a_line_every_30_seconds_names_the_task(monkeypatch: pytest.MonkeyPatch):
    class BrokenPipe(StringIO):
        def flush(self) -> None:
            flushed.set()

    flushed = Event()
    assert progress.LINE_SECONDS == 30
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
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


def seconds_left(remaining: Remaining, after: float) -> float:
    """The shown time in seconds; 0 for "under 10 s"."""
    numbers = {unit: float(number) for number, unit in re.findall(r"([\d.]+) (min|s) ", remaining.text(after) + " ")}
    return 0.0 if re.search("under|longer", remaining.text(after)) else 60 * numbers.get("min", 0.0) + numbers["s"]


def test_the_time_left_falls_while_one_long_item_runs():
    for expected in ({}, {"a": 10.0, "b": 10.0, "long": 100.0, "c": 20.0}):
        remaining = Remaining(4, expected, sum(expected.values()))
        remaining.ended("a", 1, 10.0)
        remaining.ended("b", 1, 20.0)
        shown = [seconds_left(remaining, after) for after in (20.0, 40.0, 80.0, 200.0)]
        assert shown == sorted(shown, reverse=True) and shown[0] > shown[-1] == 0.0
        remaining.ended("long", 1, 200.0)
        assert remaining.text(200.0)


def test_what_delays_the_first_item_is_named_until_it_completes(capsys: pytest.CaptureFixture[str]):
    times = iter([0, 30, 60])
    with counting(3, "cell", lambda: next(times), {"a": 1.0}, 1.0, "compiling") as advance:
        advance("none", 0)
        advance("none", 1, item="a")
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 cells, after 30 s, compiling",
        "1 of 3 cells, after 1 min 0 s, under 10 s left",
    ]


def test_an_overdue_end_is_not_said_to_be_near():
    remaining = Remaining(2, {"a": 5.0, "b": 5.0}, 10.0)
    assert [remaining.text(after) for after in (1.0, 9.9, 10.1)] == [
        "under 10 s left",
        "under 10 s left",
        "longer than estimated",
    ]


def test_the_time_left_is_that_of_what_is_left_not_of_its_number():
    """Nine short items of ten are done, and the tenth takes as long as all of them."""
    expected = {**dict.fromkeys(range(9), 10.0), "long": 90.0}
    remaining = Remaining(10, expected, 180.0)
    assert remaining.text(0.0) == "about 3 min 0 s left"
    for number in range(9):
        remaining.ended(number, 1, 10.0 * (number + 1))
    assert remaining.text(90.0) == "about 1 min 30 s left"
    side_by_side = Remaining(10, expected, 90.0)
    assert side_by_side.text(0.0) == "about 1 min 30 s left"
    for number in range(8):
        side_by_side.ended(number, 1, 5.0 * (number + 1))
    # Two workers would take 50 s for what is left, but no second one helps with the long item.
    assert side_by_side.text(40.0) == "about 1 min 30 s left"


def test_a_slow_machine_and_a_slow_start_change_the_time_left():
    expected = dict.fromkeys(range(1000), 1.0)
    remaining = Remaining(1000, expected, 1000.0)
    remaining.ended(0, 1, 5.0)  # a start of 4 s
    assert 1000 < seconds_left(remaining, 5.0) < 1300
    for number in range(1, 500):
        remaining.ended(number, 1, 2.0 * (number + 1))
    assert 950 < seconds_left(remaining, 1000.0) < 1050
    remaining.ended("unknown", 500, 2000.0)
    assert remaining.text(2000.0) == ""
    assert Remaining(3, {}, 0.0).text(30.0) == ""
