"""Ownership of the sliding-window layers' pages, which are numbered separately from the ledger's other pages.

A layer with a window of W tokens never again reads a position below committed - W + 1, so an account owns window pages
only from there on. These positions follow from the account; this module knows no requests or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from specmatrix.errors import LedgerError

NOBODY: Final = 0


@dataclass(frozen=True, slots=True)
class Window:
    """tokens: window size, the query's own position included. pages: size of the pool, without padding page 0.

    margin: committed positions that a trim may still undo (sglang#22900 freed by an uncapped frontier).
    """

    tokens: int
    pages: int
    margin: int = 0


def pool_pages(
    window: int, *, pages: int, page_size: int, ratio: float, rows: int, steps: int, width: int, chunk: int
) -> int:
    """Number of pages for an engine's windowed layers.

    The maximum that `rows` requests can hold at once with `steps` prefill chunks or rounds of `width` in flight, but at
    most `ratio` (SGLang's swa_full_tokens_ratio) times the `pages` of the other layers, and at least one.
    """
    reach = window + steps * (width + max(width, chunk))
    needed = rows * (-(-reach // page_size) + 1)
    return max(1, min(math.ceil(ratio * pages), needed))


@dataclass(eq=False, slots=True)
class WindowSpan:
    """One account's live window pages: pages[i] covers positions [(first + i) * P, (first + i + 1) * P)."""

    first: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index of the page after the last live one."""
        return self.first + len(self.pages)


class WindowLedger:
    """Ownership of window pages. Accounts are the ledger's; positions are in tokens."""

    def __init__(self, window: Window, page_size: int) -> None:
        if window.tokens < 1 or window.pages < 1 or window.margin < 0:
            raise LedgerError(f"a window needs at least one token and one page, got {window}")
        self.window = window
        self.page_size = page_size
        self.owner: list[int] = [NOBODY] * (window.pages + 1)
        self.free: list[int] = list(range(window.pages, 0, -1))
        self.spans: dict[int, WindowSpan] = {}

    def open(self, account: int) -> None:
        """Open an account without pages."""
        self.spans[account] = WindowSpan()

    def missing(self, account: int, end: int) -> int:
        """Pages that covering every position below `end` would add."""
        return max(0, -(-end // self.page_size) - self.spans[account].end)

    def cover(self, account: int, end: int) -> tuple[int, ...]:
        """Reserve every position from the first live page up to `end`. Returns the pages added; LedgerError if too few
        are free."""
        grow = self.missing(account, end)
        if grow > len(self.free):
            raise LedgerError(f"cover: account {account} needs {grow} window pages, {len(self.free)} are free")
        added = tuple(self.free.pop() for _ in range(grow))
        for page in added:
            self.owner[page] = account
        self.spans[account].pages.extend(added)
        return added

    def frontier(self, committed: int) -> int:
        """Index of the first page that a query at position `committed` - margin or later can still read."""
        return max(0, committed - self.window.margin - self.window.tokens + 1) // self.page_size

    def peak(self, longest: int, flying: int) -> int:
        """Maximum pages that an account of `longest` positions holds at once: for all of them, or for a window, the
        margin and `flying` positions of unresolved steps, plus one page because they may start within a page."""
        size, reach = self.page_size, self.window.tokens + self.window.margin + flying
        return min(-(-longest // size), -(-reach // size) + 1)

    def slide(self, account: int, committed: int) -> int:
        """Free the pages that no later query reads. Returns their number."""
        span = self.spans[account]
        gone = min(self.frontier(committed), span.end) - span.first
        if gone <= 0:
            return 0
        self._free(span.pages[:gone])
        del span.pages[:gone]
        span.first += gone
        return gone

    def reaches(self, account: int, keep: int) -> bool:
        """True if every position that a query at position `keep` may read has a page."""
        return self.spans[account].first * self.page_size <= max(0, keep - self.window.tokens + 1)

    def trim(self, account: int, keep: int) -> int:
        """Free the pages that hold no position below `keep`. Returns their number."""
        span = self.spans[account]
        stay = max(0, -(-keep // self.page_size) - span.first)
        gone = span.pages[stay:]
        self._free(gone)
        del span.pages[stay:]
        return len(gone)

    def close(self, account: int) -> None:
        """Free all pages of an account."""
        self._free(self.spans.pop(account).pages)

    def check(self, positions: Mapping[int, tuple[int, int]]) -> None:
        """Raise LedgerError naming the first law that does not hold. positions: account -> (committed, reserved)."""
        held: dict[int, int] = {}
        if positions.keys() != self.spans.keys():
            raise LedgerError(
                f"law 6: window accounts {sorted(self.spans)} differ from the ledger's {sorted(positions)}"
            )
        for account, span in self.spans.items():
            committed, reserved = positions[account]
            if not self.reaches(account, committed):
                raise LedgerError(
                    f"law 6: account {account} has {committed} positions committed, and a query there reads the last "
                    f"{self.window.tokens}, but its window pages begin at position {span.first * self.page_size}"
                )
            if span.pages and span.end * self.page_size > reserved:
                raise LedgerError(f"law 6: account {account} owns window pages past its {reserved} reserved positions")
            for page in span.pages:
                if page in held:
                    raise LedgerError(f"law 2: window page {page} is in the rows of {held[page]} and {account}")
                held[page] = account
        free = set(self.free)
        whole = len(free) == len(self.free) and len(free) + len(held) == self.window.pages and free.isdisjoint(held)
        # Each held page has an account, so if the count is right, the unowned pages (and entry 0) are the free ones.
        owners = self.owner.count(NOBODY) == len(free) + 1 and [self.owner[page] for page in held] == [*held.values()]
        if not (whole and owners):
            raise LedgerError(
                f"law 1: {self.window.pages} window pages are {len(self.free)} free and {len(held)} held, "
                "and each must have one recorded owner"
            )

    def _free(self, pages: list[int]) -> None:
        for page in reversed(pages):
            self.owner[page] = NOBODY
            self.free.append(page)
