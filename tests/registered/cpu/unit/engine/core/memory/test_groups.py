"""Groups with a window: an account owns what a later query reads, no page twice, and gives the rest back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specmatrix.engine.core.memory import groups
from specmatrix.engine.core.memory.groups import FREE, FullAttention, GroupPages, SlidingWindow, page_groups
from specmatrix.engine.core.memory.ledger import Ledger, OutOfPages, replay
from specmatrix.errors import LedgerError

PAGES = 40


class WindowMachine(RuleBasedStateMachine):
    """Rows that grow, settle and end, against a model that only tracks which positions a later query reads."""

    @initialize(size=st.integers(1, 5), tokens=st.integers(1, 9), margin=st.integers(0, 6))
    def start(self, size, tokens, margin):
        self.size, self.tokens, self.margin = size, tokens, margin
        self.group = SlidingWindow(PAGES, size, tokens, margin)
        self.ledger = Ledger(FullAttention(PAGES, size), self.group, strict=True)
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
        if any(self.ledger.shortfall(rid, width)):
            return
        self.ledger.reserve(rid, width)
        self.ledger.launch(rid, width)
        self.flights[rid].append(width)

    @precondition(lambda self: any(self.flights.values()))
    @rule(data=st.data())
    def settle(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if f)))
        kept = data.draw(st.integers(0, self.flights[rid].pop(0)))
        self.ledger.settle(rid, kept)
        self.committed[rid] += kept

    @precondition(lambda self: any(not f for f in self.flights.values()))
    @rule(data=st.data())
    def close(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if not f)))
        self.ledger.close(rid)
        del self.flights[rid], self.committed[rid]

    @invariant()
    def every_position_that_is_read_is_owned_and_no_page_beyond(self):
        for rid, committed in self.committed.items():
            span = self.ledger.accounts[rid].groups[1]
            read_from = max(0, committed - self.tokens + 1)
            assert span.first * self.size <= read_from
            # Nothing is kept longer than the margin and the rest of a page ask for.
            assert span.first >= max(0, committed - self.margin - self.tokens + 1) // self.size or not span.pages
            assert span.end * self.size >= committed + sum(self.flights[rid])
            assert span.end == self.ledger.accounts[rid].groups[0].end

    @invariant()
    def pages_are_conserved(self):
        held = [page for account in self.ledger.accounts.values() for page in account.groups[1].pages]
        assert sorted([*held, *self.group.free]) == list(range(1, PAGES + 1))

    def teardown(self):
        if hasattr(self, "ledger"):
            again = replay(self.ledger.journal)
            assert again.accounts.keys() == self.ledger.accounts.keys()
            assert [group.free for group in again.groups] == [group.free for group in self.ledger.groups]


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def grown(committed: int, *, size: int = 4, tokens: int = 6, margin: int = 0) -> Ledger:
    """A ledger whose request 1 has `committed` positions, one launch."""
    ledger = Ledger(FullAttention(PAGES, size), SlidingWindow(PAGES, size, tokens, margin))
    ledger.open(1)
    ledger.reserve(1, committed)
    ledger.launch(1, committed)
    ledger.settle(1, committed)
    return ledger


@pytest.mark.parametrize(("committed", "margin", "freed"), [(6, 0, 0), (8, 0, 0), (9, 0, 1), (20, 0, 3), (20, 4, 2)])
def test_a_settle_frees_full_pages_outside_the_next_querys_window(committed, margin, freed):
    # A query at position 9 with a window of 6 reads 4..9, so page 0 (0..3) goes; one at 8 reads 3..8, so it stays.
    ledger = grown(committed, margin=margin)
    assert ledger.accounts[1].groups[1].first == freed
    pages = () if not freed else ((), tuple(range(1, freed + 1)))
    assert ledger.journal[-1] == ("settle", 1, committed, pages)


def test_a_trim_keeps_the_partial_page_and_returns_whether_the_window_reaches():
    group, own = SlidingWindow(PAGES, 4, 6, 4), GroupPages()
    group.cover(1, own, 20)
    group.slide(own, 20)  # first page 2: position 8 on
    assert group.reaches(own, 16) and group.reaches(own, 13) and not group.reaches(own, 12)
    assert group.trim(own, 17) == ()
    assert group.trim(own, 16) == (5,)
    assert group.reaches(own, 16) and not group.reaches(own, 17)
    group.close(own)
    assert sorted(group.free) == list(range(1, PAGES + 1))


def test_refusals_name_the_numbers():
    for sizes in ((0,), (1, -1)):
        with pytest.raises(LedgerError, match="a sliding window needs at least one token"):
            SlidingWindow(4, 4, *sizes)
    ledger = Ledger(FullAttention(4, 4), SlidingWindow(1, 4, 6))
    ledger.open(1)
    with pytest.raises(OutOfPages, match="account 1 needs 2 sliding-window pages, 1 are free"):
        ledger.reserve(1, 8)
    assert ledger.shortfall(1, 8) == [0, 1] and ledger.counts.held == 0, "no group has changed"


def test_a_journal_begins_with_the_groups_of_no_request():
    assert Ledger(*page_groups(4, 2, 6, 5, 1)).journal == [("groups", 0, 2, ((0, 4), (1, 5, 6, 1)))]
    assert Ledger(*page_groups(4, 2, None, 0, 1)).journal == [("groups", 0, 2, ((0, 4),))]


def test_cached_pages_cannot_open_a_windowed_account():
    ledger = grown(4)
    (page,) = ledger.donate(1, 1)
    with pytest.raises(LedgerError, match=rf"open: cached pages \[{page}\] lack KV that sliding-window layers read"):
        ledger.open(2, [page])
    ledger.check()


def broken(case: str) -> Ledger:
    ledger = grown(20)
    ledger.open(2)
    ledger.reserve(2, 4)
    group, one, two = ledger.groups[1], ledger.accounts[1].groups[1], ledger.accounts[2].groups[1]
    if case == "freed too far":
        page, one.first = one.pages.pop(0), one.first + 1
        group.owner[page] = FREE
        group.free.append(page)
    elif case == "past the end":
        group.cover(2, two, 12)
    elif case == "shared":
        two.pages[0] = one.pages[0]
    elif case == "leaked":
        group.free.pop()
    return ledger


@pytest.mark.parametrize(
    ("case", "law"),
    [
        ("freed too far", "law 6: account 1 has 20 positions committed, and a query there reads from 15"),
        ("past the end", "law 3: account 2 has 0 positions committed, 0 in flight, and 12 reserved in sliding-window"),
        ("shared", "law 2: sliding-window page 4 is in the rows of 1 and 2"),
        ("leaked", "law 1: sliding-window page 2 has 0 owners"),
    ],
)
def test_every_law_is_checked(case, law):
    broken("none").check()
    with pytest.raises(LedgerError, match=law):
        broken(case).check()


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
    assert groups.window_pages(6, pages=90, page_size=4, **{"ratio": 1.0, **asked}) == pages


def stated(*widths: int) -> Ledger:
    """A ledger with a checkpoint every two pages of 4, whose request 1 has committed all of each step but 2 of the
    last."""
    ledger = Ledger(*page_groups(12, 4, None, 0, 1, states=6, scale=2), strict=True)
    ledger.open(1)
    for width in widths:
        ledger.reserve(1, width)
        ledger.launch(1, width)
        ledger.settle(1, width - 2 * (width is widths[-1]))
    return ledger


def test_a_step_begins_with_the_live_state_or_at_a_checkpoint():
    ledger = stated(8, 8, 5)
    own = ledger.accounts[1].groups[1]
    assert (own.pages, own.length, ledger.groups[1].budget(17, 99, 7)) == ([1, 2, 3], 19, 3)
    assert {at: ledger.reach(1, at) for at in (19, 18, 16, 15, 8, 7)} == {19: 19, 18: 16, 16: 16, 15: 8, 8: 8, 7: 0}
    assert [ledger.chunk_end(*ends) for ends in ((0, 30), (8, 30), (9, 11), (15, 30))] == [8, 16, 11, 16]
    with pytest.raises(LedgerError, match="hold: request 1 no longer owns pages that a query at position 18 reads"):
        ledger.hold(1, 18)
    ledger.reserve(1, 4)
    ledger.launch(1, 4)
    ledger.cancel(1)  # the step may have written the live state
    assert ledger.reach(1, 19) == 16 == ledger.reach(1, 16)
    assert ledger.hold(1, 16) == ((5, 6), (3,)) and ledger.resume(1).start == 16
    assert replay(ledger.journal).groups[1].sizes == (2, 6, 2)


def test_a_checkpoint_enters_and_leaves_the_cache_with_the_pages_before_it():
    ledger = stated(8, 8, 5)
    with pytest.raises(LedgerError, match="donate: request 1 gives 3 pages; allowed: a multiple of 2"):
        ledger.donate(1, 3)
    first = ledger.donate(1, 2)
    assert ledger.journal[-1] == ("donate", 1, 2, (first, (1,)))
    rest = ledger.donate(1, 2)
    with pytest.raises(LedgerError, match=r"open: cached pages \[1, 2, 3\] lack KV that recurrent-state layers read"):
        ledger.open(2, [*first, rest[0]])
    ledger.open(2, [*first, *rest])
    assert ledger.reach(2, 16) == 16 and ledger.accounts[2].groups[1].pages == [1, 2]
    ledger.close(1)
    with pytest.raises(LedgerError, match="evict: page 3 is used by 1 rows"):
        ledger.evict(*rest)
    ledger.close(2)
    ledger.evict(*rest)
    assert ledger.journal[-1] == ("evict", 0, 2, ((3, 4), (2,)))
    assert [group.counts.cached for group in replay(ledger.journal).groups] == [2, 1]


@pytest.mark.parametrize(
    ("field", "value", "law"),
    [
        ("length", 4, "law 6: account 1 has 6 positions committed, and a recurrent-state of 4"),
        ("pages", [], "law 3: account 1 has 6 positions committed, 0 in flight, and 0 reserved in recurrent-state"),
        ("pages", [1, 2], "law 1: account 1 has recurrent-state page 2, which is not recorded as its own"),
    ],
)
def test_the_laws_of_a_state(field, value, law):
    ledger = stated(8)
    ledger.check()
    setattr(ledger.accounts[1].groups[1], field, value)
    with pytest.raises(LedgerError, match=law):
        ledger.check_row(1)
