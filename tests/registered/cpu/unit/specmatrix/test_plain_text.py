"""What is printed is text, in whatever pieces it comes."""

from io import StringIO
from itertools import pairwise

import pytest

from specmatrix.plain_text import PlainStream, as_given
from specmatrix.reports.render.console import PlainConsole, StdoutConsole

SHOWN = {
    "plain: text\n\twith [brackets] a::b # ## x": None,
    "\x1b[31mred\x07\r": "\\x1b[31mred\\x07\\r",
    "\x9b1m\u202ex\u2066\u200f\u2028": "\\x9b1m\\u202ex\\u2066\\u200f\\u2028",
    "::error::x": ":\\x3aerror::x",
    "a\n  ::set-env name=x::y\n": "a\n  :\\x3aset-env name=x::y\n",
    "a ##[group]x ##vso[task.x]": "a ##\\x5bgroup]x ##vso\\x5btask.x]",
}
PIECES = [":", ":error::x\n", "#", "#", "[group]", "\n \t", ":", ":x", "::y" * 40, "##" * 50, "[z]\n"]


@pytest.mark.parametrize("text", SHOWN)
def test_what_a_terminal_or_a_ci_acts_on_is_an_escape(text):
    file = StringIO()
    stream = PlainStream(file)
    print(text, end="", file=stream)
    assert file.getvalue() == (SHOWN[text] or text) and as_given(stream) is file and as_given(file) is file


def test_a_command_in_pieces_is_none_either():
    whole, pieces = StringIO(), StringIO()
    PlainStream(whole).write("".join(PIECES))
    stream = PlainStream(pieces)
    for piece in PIECES:
        stream.write(piece)
    assert pieces.getvalue() == whole.getvalue()
    assert not any(a == b == ":" for line in whole.getvalue().splitlines() for a, b in pairwise(line.lstrip()[:2]))


@pytest.mark.parametrize("kind", [PlainConsole, StdoutConsole])
def test_a_terminal_gets_the_consoles_styles_and_nobody_elses(kind, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    raw = StringIO()
    console = kind(file=PlainStream(raw), force_terminal=True, color_system="standard", width=60)
    console.print("[red]::error::\x1b]0;title\x07\u202e[/red]", highlight=False)
    assert raw.getvalue() == "\x1b[31m:\\x3aerror::\\x1b]0;title\\u202e\x1b[0m\n"
