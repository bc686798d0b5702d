"""A request's text: tokens are added one by one, and decoded only when the text is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns tokens into text, however they are grouped. `push` returns the whole text so far."""

    def push(self, tokens: Sequence[int]) -> str: ...


class OutputText:
    """Holds tokens undecoded until the text is read: most texts are read once, at the end."""

    __slots__ = ("_stream", "_text", "_waiting")

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._waiting: list[int] = []
        self._text = ""

    def take(self, token: int) -> None:
        """Add the next token."""
        self._waiting.append(token)

    def read(self) -> str:
        """The text of all added tokens."""
        if self._waiting:
            self._text = self._stream.push(self._waiting)
            self._waiting = []
        return self._text

    def cut(self, length: int) -> None:
        """Keep the first `length` characters; no token may follow."""
        self._text = self.read()[:length]
