"""Snug memory: between one and two conversations, so a retracted turn resumes from the KV that its session kept.

The second turns of two conversations do not fit with the first ones, so the younger is retracted; the end of the older
one, with two rounds of the widest tree, fits with the KV that the younger had inherited.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Snug(NamedTuple):
    """Sizes in tokens: of the memory, and of a conversation after its first and its second turn."""

    memory: int
    first: int
    second: int


SMALL_PAGES: Final = Snug(320, 96, 190)
# A second turn must start within the pages of the first, with two rounds. The slower turn must reach the next page
# while the faster one still runs: it needs less than a third as many tokens for that.
PAGES: Final = {64: Snug(384, 82, 222), 256: Snug(768, 208, 380)}
# Sliding-window layers reserve three pages per conversation at page size 64.
WINDOWED_PAGES: Final = {64: Snug(512, 148, 280), 256: Snug(1280, 460, 600)}


def snug(windowed: bool, page_size: int) -> Snug:
    """The sizes for pages of `page_size` tokens."""
    return (WINDOWED_PAGES if windowed else PAGES).get(page_size, SMALL_PAGES)


def spares(windowed: bool, page_size: int) -> bool:
    """Whether a second turn's inherited KV survives its retraction: with smaller pages a window has slid past it."""
    return not windowed or page_size == 256
