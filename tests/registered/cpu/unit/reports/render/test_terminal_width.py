"""What a terminal gets fits its width; a file or pipe gets the lines as they are."""

import re

import pytest

from specmatrix.cli import main
from specmatrix.reports.render.console import StdoutConsole, print_markdown, print_text

TEXT = "short\n  two words and more words than a line of thirty has\n\n" + "x" * 40
TABLE = "# Title\n\n| name | what it is |\n|---|---|\n| a | " + "words " * 12 + "|\n"


@pytest.fixture(params=[30, 80])
def terminal(request, monkeypatch):
    """A terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setattr(StdoutConsole, "is_terminal", property(lambda console: True))
    return request.param


def test_a_pipe_gets_the_lines(capsys):
    print_text(TEXT)
    print_markdown(TABLE)
    assert capsys.readouterr().out == f"{TEXT}\n{TABLE}\n"


def test_a_terminal_gets_lines_broken_between_words(terminal, capsys):
    print_text(TEXT)
    lines = capsys.readouterr().out.splitlines()
    if terminal == 30:
        assert lines == ["short", "  two words and more words", "    than a line of thirty has", "", "x" * 40]
    else:
        assert lines == TEXT.splitlines()


def test_a_terminal_gets_tables_that_fit(terminal, capsys):
    print_markdown(TABLE)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= terminal and "|---" not in out and out.count("words") == 12


@pytest.mark.parametrize(
    "command",
    [
        "axes",
        "cells list --stage smoke",
        "cells list --subject transformers",
        "zoo list",
        "faults --list",
        "explain eagle3.s3.k4.n8.v2.mixed_lengths",
        "checkpoints list",
        "subjects",
        "subjects show openai",
    ],
)
def test_commands_fit_a_terminal(terminal, command, capsys):
    """Only a single word may be wider; a table that does not fit becomes a list."""
    assert main(command.split()) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert len(lines) >= 5 and (command != "checkpoints list" or "llama-3.1-8b.eagle3" in lines)
    assert not [line for line in lines if len(line) > terminal and len(line.split()) > 1]
