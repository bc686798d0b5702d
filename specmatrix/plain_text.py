"""Text that neither a terminal nor a CI acts on, whatever file or header it came from."""

from __future__ import annotations

import re
from typing import IO, Any, Final

# Control characters but for tab and newline, marks that turn the direction of text, and other ends of a line.
ACTIVE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# What begins a workflow command: `::name` at the start of a line, `##[name]` and `##vso[name]` anywhere.
_COMMAND: Final = re.compile(r"^[^\S\n]*::|##\w*\[", re.MULTILINE)
# Characters of an unfinished line in which a command may begin.
_LOOKED_BACK: Final = 80


def visible(text: str) -> str:
    """The text with active characters as escapes."""
    return ACTIVE.sub(lambda found: ascii(found[0])[1:-1], text)


def inert(text: str) -> str:
    """As `visible`, and no line is a workflow command: the last character that makes it one is an escape too."""
    return _COMMAND.sub(lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}", visible(text))


class PlainStream:
    """A stream through which everything passes as inert text, whatever the pieces in which it comes."""

    def __init__(self, file: IO[str]) -> None:
        self.file: Final = file
        self._line = ""

    def write(self, text: str) -> int:
        """Write all of it; the number of characters given."""
        before = self._line  # which another thread may change
        whole = inert(before + text)
        self.file.write(whole[len(before) :])
        line = whole.rpartition("\n")[2]
        # A cut line does not begin where it is cut.
        self._line = line if len(line) <= _LOOKED_BACK else f".{line[-_LOOKED_BACK:]}"
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of a stream's
        return getattr(self.file, name)


def as_given(stream: IO[str]) -> IO[str]:
    """The stream behind a PlainStream, for what is meant to act."""
    return stream.file if isinstance(stream, PlainStream) else stream
