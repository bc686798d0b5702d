"""Checks that readers and writers of cached pages have the same text; shares no code with the engine's cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Journal, Served

# Draft KV at a position also depends on the next token (sglang#10846).
SHIFTED: Final = ("standalone", "eagle", "eagle3", "nextn")


def span_of(cell: Cell, resolved: Mapping[str, Any]) -> int:
    """Number of tokens after a position that its draft KV depends on; one per draft layer with a layer per step."""
    if cell.own_traits is not None:
        return cell.own_traits.key_span
    if cell.algorithm not in SHIFTED:
        return 0
    return int(resolved["num_steps"]) if resolved["enable_multi_layer_eagle"] else 1


def misread_pages(journal: Journal, size: int, served: Iterable[Served], span: int) -> tuple[int, str]:
    """Number of cached pages read, and a sentence on the first whose reader and writer have different texts.

    A page's text extends from the first token to `span` tokens past its end. served: every request of the journal.
    """
    texts: dict[int, list[tuple[int, ...]]] = {}
    for one in served:
        texts.setdefault(one.account, []).append(one.tokens)
    held: dict[int, int] = {}  # account to its number of cached pages
    writers: dict[int, tuple[int, int]] = {}  # page to (writing account, index among its pages)
    read = 0
    for operation, account, _, pages in journal:
        if operation == "open":
            shared = pages[0] if pages else ()
            held[account] = len(shared)
            read += len(shared)
            for index, page in enumerate(shared):
                writer, place = writers[page]
                end = (index + 1) * size + span
                if place != index or not _alike(texts.get(account, []), texts.get(writer, []), end):
                    wrong = f"at position {place * size}"
                    if place == index:
                        wrong = f"for other tokens (compared up to {span} past the page's end)"
                    return read, (
                        f"account {account} reads cached page {page} at position {index * size}, but account {writer} "
                        f"wrote it {wrong}"
                    )
        elif operation == "donate":
            for page in pages[0]:
                writers[page] = account, held[account]
                held[account] += 1
    return read, ""


def _alike(mine: list[tuple[int, ...]], theirs: list[tuple[int, ...]], end: int) -> bool:
    """Whether some text of each agrees (a session's turns have several) as far as both are known."""
    return any(
        one[: min(end, len(other))] == other[: min(end, len(one))] for one in mine or [()] for other in theirs or [()]
    )
