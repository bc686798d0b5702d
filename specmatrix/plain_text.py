"""Escapes untrusted text so that neither a terminal nor a CI interprets it."""

from __future__ import annotations

import re
from typing import IO, Any, Final

# Control characters except tab and newline, bidirectional marks, and other line separators.
ACTIVE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# The start of a CI workflow command: `::name` at the start of a line, `##[name]` and `##vso[name]` anywhere.
_COMMAND: Final = re.compile(r"^[^\S\n]*::|##\w*\[", re.MULTILINE)
# How many characters of an unfinished line are kept to detect a command split across writes.
_LOOKED_BACK: Final = 80


def visible(text: str) -> str:
    """Escape the ACTIVE characters of a text."""
    return ACTIVE.sub(lambda found: ascii(found[0])[1:-1], text)


def inert(text: str) -> str:
    """Like `visible`, and also escape the last character of each workflow command's start."""
    return _COMMAND.sub(lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}", visible(text))


class PlainStream:
    """A stream that writes `inert` text, also if a command is split across writes."""

    def __init__(self, file: IO[str]) -> None:
        self.file: Final = file
        self._line = ""

    def write(self, text: str) -> int:
        """Write all of `text` and return its length."""
        before = self._line  # which another thread may change
        whole = inert(before + text)
        self.file.write(whole[len(before) :])
        line = whole.rpartition("\n")[2]
        # The dot keeps the cut from looking like the start of a line.
        self._line = line if len(line) <= _LOOKED_BACK else f".{line[-_LOOKED_BACK:]}"
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of a stream's
        return getattr(self.file, name)


def as_given(stream: IO[str]) -> IO[str]:
    """The stream behind a PlainStream, for intended control sequences and commands."""
    return stream.file if isinstance(stream, PlainStream) else stream
