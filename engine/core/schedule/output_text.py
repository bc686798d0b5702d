"""The text of a request: tokens go in one by one, and are decoded when somebody reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns tokens into text, whatever runs they come in. `push` returns the whole text so far."""

    def push(self, tokens: Sequence[int]) -> str: ...


class OutputText:
    """Tokens taken wait undecoded until the text is read: most texts are read once, at the end."""

    __slots__ = ("_stream", "_text", "_waiting")

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._waiting: list[int] = []
        self._text = ""

    def take(self, token: int) -> None:
        """The next token."""
        self._waiting.append(token)

    def read(self) -> str:
        """The text of all tokens taken."""
        if self._waiting:
            self._text = self._stream.push(self._waiting)
            self._waiting = []
        return self._text

    def cut(self, length: int) -> None:
        """Keep the first `length` characters; no token comes after this."""
        self._text = self.read()[:length]
