"""Markdown that always fits a pull-request comment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from specmatrix.reports.wording import count, shorten

# GitHub refuses comments above 65,536 characters; bytes are never fewer.
LIMIT: Final = 64_000
_SPECIAL: Final = re.compile(r"([\\`*_\[\]|#~])")
_ROW: Final = 600


def escape(text: object, most: int = 240) -> str:
    """Text that Markdown shows as it is, on one line of at most `most` characters."""
    plain = shorten(str(text), most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def code(text: object, most: int = 160) -> str:
    """Text as code inside a sentence or a table cell."""
    plain = shorten(str(text), most).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall(r"`+", plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


class Document:
    """Collects Markdown until it is full. What does not fit is counted, never cut in the middle.

    Sections come in the order of their importance; each may use what the earlier ones left, up to its own `most` rows.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        # Room for the words that say what was left out.
        self._left = limit - 1_000
        self._parts: list[str] = []

    def line(self, text: str = "") -> None:
        """One line of text, left out if the document is full."""
        self._add([text])

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int = 40) -> None:
        """A table of prepared cells; the last line says how many rows are not shown."""
        if not rows:
            return
        head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        self._rows(head, ["| " + " | ".join(row) + " |" for row in rows], [""], most)

    def commands(self, title: str, lines: Sequence[str], most: int = 40) -> None:
        """Shell lines behind a fold, to be copied as they are."""
        if lines:
            # A fence inside a command would end the block, and a newline would make it two commands.
            plain = [line.replace("```", "` ` `").replace("\n", " ") for line in lines]
            head = [f"<details><summary>{escape(title)}</summary>", "", "```sh"]
            self._rows(head, plain, ["```", "", "</details>", ""], most)

    def text(self) -> str:
        """The document so far."""
        return "\n".join(self._parts).rstrip() + "\n"

    def _rows(self, head: list[str], rows: Sequence[str], foot: list[str], most: int) -> None:
        if not self._add([*head, *foot]):
            return
        at = len(self._parts) - len(foot)
        shown = 0
        for row in rows[:most]:
            size = len(row.encode()) + 1
            if size > self._left or (shown and size > _ROW * 4):
                break
            self._parts.insert(at + shown, row)
            self._left -= size
            shown += 1
        if shown < len(rows):
            self._parts.append(f"… and {count(len(rows) - shown, 'more row')} in the full report.\n")
            self._left -= 60

    def _add(self, lines: list[str]) -> bool:
        size = sum(len(line.encode()) + 1 for line in lines)
        if size > self._left:
            return False
        self._parts += lines
        self._left -= size
        return True
