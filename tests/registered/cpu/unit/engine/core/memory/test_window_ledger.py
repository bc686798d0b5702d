"""Window accounts: a row owns what a later query reads, no page twice, and gives the rest back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.memory.window_ledger import Window, WindowLedger, pool_pages
from specmatrix.errors import LedgerError

PAGES = 40


class WindowMachine(RuleBasedStateMachine):
    """Rows that grow, settle and end, against a model that only tracks which positions a later query reads."""

    @initialize(size=st.integers(1, 5), tokens=st.integers(1, 9), margin=st.integers(0, 6))
    def start(self, size, tokens, margin):
        self.size, self.tokens, self.margin = size, tokens, margin
        self.ledger = Ledger(PAGES, size, strict=True, window=Window(tokens, PAGES, margin))
        self.flights: dict[int, list[int]] = {}
        self.committed: dict[int, int] = {}
        self.next_rid = 1

    @rule()
    def open(self):
        rid, self.next_rid = self.next_rid, self.next_rid + 1
        self.ledger.open(rid)
        self.flights[rid], self.committed[rid] = [], 0

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), width=st.integers(1, 12))
    def launch(self, data, width):
        rid = data.draw(st.sampled_from(sorted(self.flights)))
        if self.ledger.shortfall(rid, width):
            return
        self.ledger.reserve(rid, width)
        self.ledger.cover(rid)
        self.ledger.launch(rid, width)
        self.flights[rid].append(width)

    @precondition(lambda self: any(self.flights.values()))
    @rule(data=st.data())
    def settle(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if f)))
        kept = data.draw(st.integers(0, self.flights[rid].pop(0)))
        self.ledger.settle(rid, kept)
        self.committed[rid] += kept
        self.ledger.slide(rid)

    @precondition(lambda self: any(not f for f in self.flights.values()))
    @rule(data=st.data())
    def close(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if not f)))
        self.ledger.close(rid)
        del self.flights[rid], self.committed[rid]

    @invariant()
    def every_position_that_is_read_is_owned_and_no_page_beyond(self):
        for rid, committed in self.committed.items():
            span = self.ledger.window.spans[rid]
            read_from = max(0, committed - self.tokens + 1)
            assert span.first * self.size <= read_from
            # Nothing is kept longer than the margin and the rest of a page ask for.
            assert span.first >= max(0, committed - self.margin - self.tokens + 1) // self.size or not span.pages
            end = committed + sum(self.flights[rid])
            assert span.end * self.size >= end

    @invariant()
    def pages_are_conserved(self):
        book = self.ledger.window
        held = [page for span in book.spans.values() for page in span.pages]
        assert sorted([*held, *book.free]) == list(range(1, PAGES + 1))

    def teardown(self):
        if hasattr(self, "ledger"):
            again = replay(self.ledger.journal, PAGES, self.size)
            assert again.window.spans.keys() == self.ledger.window.spans.keys()
            assert again.window.free == self.ledger.window.free


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def grown(committed: int, *, size: int = 4, tokens: int = 6, margin: int = 0) -> Ledger:
    """A ledger whose request 1 has `committed` positions, one launch."""
    ledger = Ledger(PAGES, size, window=Window(tokens, PAGES, margin))
    ledger.open(1)
    ledger.reserve(1, committed)
    ledger.cover(1)
    ledger.launch(1, committed)
    ledger.settle(1, committed)
    return ledger


@pytest.mark.parametrize(("committed", "margin", "freed"), [(6, 0, 0), (8, 0, 0), (9, 0, 1), (20, 0, 3), (20, 4, 2)])
def test_slide_frees_full_pages_outside_the_next_querys_window(committed, margin, freed):
    # A query at position 9 with a window of 6 reads 4..9, so page 0 (0..3) goes; one at 8 reads 3..8, so it stays.
    ledger = grown(committed, margin=margin)
    assert ledger.slide(1) == freed
    assert ledger.window.spans[1].first == freed


def test_what_is_in_flight_keeps_its_window():
    ledger = grown(9)
    ledger.reserve(1, 8)
    ledger.cover(1)
    ledger.launch(1, 8)
    assert ledger.slide(1) == 1  # positions 9..16 are written, yet the step reads from position 4 on


def test_a_trim_keeps_the_partial_page_and_returns_whether_the_window_reaches():
    book = WindowLedger(Window(6, PAGES, 4), 4)
    book.open(1)
    book.cover(1, 20)
    book.slide(1, 20)  # first page 2: position 8 on
    assert book.reaches(1, 16) and book.reaches(1, 13) and not book.reaches(1, 12)
    assert book.trim(1, 17) == 0
    assert book.trim(1, 16) == 1
    book.close(1)
    assert sorted(book.free) == list(range(1, PAGES + 1))


def test_refusals_name_the_numbers():
    with pytest.raises(LedgerError, match="a window needs at least one token and one page"):
        WindowLedger(Window(0, 4), 4)
    ledger = Ledger(4, 4, window=Window(6, 1))
    ledger.open(1)
    ledger.reserve(1, 8)
    with pytest.raises(LedgerError, match="cover: account 1 needs 2 window pages, 1 are free"):
        ledger.cover(1)
    with pytest.raises(LedgerError, match="launch: request 1 would write 8 positions without window pages"):
        ledger.launch(1, 8)


def test_a_journal_begins_with_the_window_of_no_request():
    assert Ledger(4, 2, window=Window(6, 4, 1)).journal == [("window", 0, (6, 4, 1))]
    assert Ledger(4, 2).journal == []


def test_cached_pages_cannot_open_a_windowed_row():
    ledger = Ledger(4, 2, window=Window(6, 4))
    ledger.open(1)
    ledger.reserve(1, 2)
    ledger.cover(1)
    ledger.launch(1, 2)
    ledger.settle(1, 2)
    (page,) = ledger.donate(1, 1)
    with pytest.raises(LedgerError, match=rf"open: cached pages \[{page}\] lack KV that the windowed layers read"):
        ledger.open(2, [page])


def broken(case: str) -> Ledger:
    ledger = grown(20)
    ledger.slide(1)
    ledger.open(2)
    ledger.reserve(2, 4)
    ledger.cover(2)
    book = ledger.window
    if case == "freed too far":
        book._free(book.spans[1].pages[:1])
        del book.spans[1].pages[:1]
        book.spans[1].first += 1
    elif case == "past the end":
        book.cover(2, 12)
    elif case == "shared":
        book.spans[2].pages[0] = book.spans[1].pages[0]
    elif case == "leaked":
        book.free.pop()
    elif case == "forgotten":
        book.spans.pop(2)
    return ledger


@pytest.mark.parametrize(
    ("case", "law"),
    [
        ("freed too far", "law 6: account 1 has 20 positions committed, and a query there reads the last 6"),
        ("past the end", "law 6: account 2 owns window pages past its 4 reserved positions"),
        ("shared", "law 2: window page 4 is in the rows of 1 and 2"),
        ("leaked", "law 1: 40 window pages are 36 free and 3 held, and each must have one recorded owner$"),
        ("forgotten", r"law 6: window accounts \[1\] differ from the ledger's \[1, 2\]"),
    ],
)
def test_every_law_is_checked(case, law):
    broken("none").check()
    with pytest.raises(LedgerError, match=law):
        broken(case).check()


def test_a_journal_with_a_window_replays():
    ledger = grown(20)
    ledger.slide(1)
    again = replay(ledger.journal, PAGES, 4)
    assert again.window.free == ledger.window.free and again.window.spans[1].first == 3
    with pytest.raises(LedgerError, match=r"slide returned pages \(3,\), but the run recorded \(2,\)"):
        replay([*ledger.journal[:-1], ("slide", 1, (2,))], PAGES, 4)


@pytest.mark.parametrize(
    ("asked", "pages"),
    [
        ({"rows": 2, "steps": 1, "width": 4, "chunk": 8}, 2 * (5 + 1)),  # 6 + 4 + 8 positions on 5 pages of 4, and one
        ({"rows": 2, "steps": 2, "width": 4, "chunk": 8}, 2 * (8 + 1)),
        ({"rows": 50, "steps": 1, "width": 4, "chunk": 8}, 90),
        ({"rows": 50, "steps": 1, "width": 4, "chunk": 8, "ratio": 0.25}, 23),
        ({"rows": 1, "steps": 1, "width": 1, "chunk": 1, "ratio": 0.001}, 1),
    ],
)
def test_a_pool_holds_what_all_rows_can_need_but_no_more_than_its_share(asked, pages):
    assert pool_pages(6, pages=90, page_size=4, **{"ratio": 1.0, **asked}) == pages
