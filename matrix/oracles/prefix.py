"""Cached pages beside the texts of who wrote and who reads them; shares no code with the engine's cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Served

# Draft KV at a position is of the token behind it, too (sglang#10846).
SHIFTED: Final = ("standalone", "eagle", "eagle3", "nextn")


def span_of(cell: Cell, resolved: Mapping[str, Any]) -> int:
    """Tokens past a position that its KV depends on; the layer of each step of a chain is shifted by one more."""
    if cell.algorithm not in SHIFTED:
        return 0
    return int(resolved["num_steps"]) if resolved["enable_multi_layer_eagle"] else 1


def misread_pages(
    journal: Iterable[tuple[str, int, tuple[int, ...]]], size: int, served: Iterable[Served], span: int
) -> tuple[int, str]:
    """Pages that were read from the cache, and the first whose reader has another text than its writer, in a sentence.

    The text of a page goes from the first token to `span` tokens past its end. `served`: every request of the journal.
    """
    texts: dict[int, list[tuple[int, ...]]] = {}
    for one in served:
        texts.setdefault(one.account, []).append(one.tokens)
    held: dict[int, int] = {}  # cached pages of an account
    writers: dict[int, tuple[int, int]] = {}  # by page: who wrote it, as which of its own
    read = 0
    for verb, account, numbers in journal:
        if verb == "open":
            held[account] = len(numbers)
            read += len(numbers)
            for index, page in enumerate(numbers):
                writer, place = writers[page]
                end = (index + 1) * size + span
                if place != index or not _alike(texts.get(account, []), texts.get(writer, []), end):
                    return read, (
                        f"request {account} reads page {page} at position {index * size}, which request {writer} wrote "
                        f"at {place * size} for other tokens; {span} past its end count"
                    )
        elif verb == "donate":
            for page in numbers[1:]:
                writers[page] = account, held[account]
                held[account] += 1
    return read, ""


def _alike(mine: list[tuple[int, ...]], theirs: list[tuple[int, ...]], end: int) -> bool:
    """Some text of each agrees; turns of a session have several. What was never shown may be anything."""
    return any(
        one[: min(end, len(other))] == other[: min(end, len(one))] for one in mine or [()] for other in theirs or [()]
    )
