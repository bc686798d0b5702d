import os
import pty
import sys

import pytest

from specmatrix.matrix.cli.progress import counting, waiting

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def shown(monkeypatch: pytest.MonkeyPatch, tty: bool) -> str:
    """What both kinds of progress write to stderr, a terminal or a pipe."""
    reader, writer = pty.openpty() if tty else os.pipe()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w"))
    with waiting("loading a[/b]"):
        pass
    with counting(3) as tell:
        tell("one", 2)
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


def test_a_terminal_shows_what_is_waited_for_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    text = shown(monkeypatch, tty=True)
    assert "loading a[/b]" in text and "one" in text and "2/3" in text


def test_a_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch):
    assert shown(monkeypatch, tty=False) == ""
