"""Snug memory: more than one conversation and less than two, so a retracted turn comes back to what its session kept.

What two conversations add in their second turns does not fit beside what both hold, so the younger is retracted; the
end of the older one, with two rounds of the widest tree, fits beside what the younger had inherited.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Snug(NamedTuple):
    """Tokens: of the memory, of a conversation behind its first turn, and behind its second."""

    memory: int
    first: int
    second: int


SMALL_PAGES: Final = Snug(320, 96, 190)
# A second turn must begin in the pages of the first, with two rounds. The slower of two has to reach the next page
# while the faster one speaks: that takes it less than a third as many tokens.
PAGES: Final = {64: Snug(384, 82, 222), 256: Snug(768, 208, 380)}
# Layers with a window keep room for three pages of each, at 64 tokens a page.
WINDOWED_PAGES: Final = {64: Snug(512, 148, 280), 256: Snug(1280, 460, 600)}


def snug(windowed: bool, page_size: int) -> Snug:
    """The sizes for pages of `page_size` tokens."""
    return (WINDOWED_PAGES if windowed else PAGES).get(page_size, SMALL_PAGES)


def spares(windowed: bool, page_size: int) -> bool:
    """Whether what a second turn inherited is still there when it is retracted: in smaller pages a window has slid."""
    return not windowed or page_size == 256
