"""Model of a cache of whole pages: the texts that it holds, and its least recently used pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Cached:
    """A cached page: the page before it (0 for none), its tokens, when it was used, and how many pages follow it."""

    before: int
    tokens: tuple[int, ...]
    used: int
    followers: int = 0


class PageTrie:
    """Pages of `size` tokens, each keyed by its own tokens and the `span` tokens after it. Page numbers are the
    engine's."""

    def __init__(self, size: int, span: int) -> None:
        self._size, self._span = size, span
        self._pages: dict[int, Cached] = {}
        self._places: dict[tuple[int, tuple[int, ...]], int] = {}  # (page before, tokens) to page
        self._now = 0

    @property
    def size(self) -> int:
        """Number of pages."""
        return len(self._pages)

    def match(self, text: Sequence[int]) -> list[int]:
        """The pages of the longest cached prefix of a text, always excluding its last token; marks them as used."""
        self._now += 1
        found: list[int] = []
        for index in range(self._whole(text, len(text) - 1)):
            page = self._places.get((found[-1] if found else 0, self._tokens(text, index)))
            if page is None:
                break
            self._pages[page].used = self._now
            found.append(page)
        return found

    def missing(self, text: Sequence[int], shared: Sequence[int], computed: int) -> int:
        """Number of whole pages of a text that a row with these cached pages can add; 0 if the next page is already
        cached."""
        first, end = len(shared), self._whole(text, computed)
        if first < end and (shared[-1] if shared else 0, self._tokens(text, first)) in self._places:
            return 0
        return max(0, end - first)

    def insert(self, text: Sequence[int], shared: Sequence[int], pages: Sequence[int]) -> None:
        """Add pages after the row's cached ones."""
        self._now += 1
        before = shared[-1] if shared else 0
        for index, page in enumerate(pages, start=len(shared)):
            self._pages[page] = Cached(before, tokens := self._tokens(text, index), self._now)
            self._places[before, tokens] = page
            if before:
                self._pages[before].followers += 1
            before = page

    def oldest(self, pinned: set[int]) -> list[int]:
        """The least recently used leaf pages that no row uses; several if of equal age."""
        pages = self._pages.items()
        loose = sorted((one.used, page) for page, one in pages if not one.followers and page not in pinned)
        return [page for used, page in loose if used == loose[0][0]]

    def remove(self, page: int) -> None:
        """Forget an evicted page."""
        gone = self._pages.pop(page)
        del self._places[gone.before, gone.tokens]
        if gone.before:
            self._pages[gone.before].followers -= 1

    def _whole(self, text: Sequence[int], positions: int) -> int:
        """Whole pages among the first positions whose following tokens are known too."""
        return max(0, min(positions, len(text) - self._span)) // self._size

    def _tokens(self, text: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(text[index * self._size : (index + 1) * self._size + self._span])
