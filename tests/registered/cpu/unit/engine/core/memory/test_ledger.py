"""The ledger: a state machine against a model of plain sets, every illegal operation, every law."""

from __future__ import annotations

import re
from operator import setitem as set_item

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specmatrix.engine.core.memory.groups import CACHE, FREE, FullAttention
from specmatrix.engine.core.memory.ledger import KEPT, Entry, Ledger, OutOfPages, replay
from specmatrix.errors import EngineError, LedgerError
from tests.support.tables import table


class LedgerMachine(RuleBasedStateMachine):
    """Operations in any order. The model keeps the owner of each page in sets and counts positions one by one."""

    @initialize(pages=st.integers(1, 10), size=st.integers(1, 4))
    def start(self, pages, size):
        self.group, self.size = FullAttention(pages, size), size
        self.ledger = Ledger(self.group, strict=True)
        self.free = set(range(1, pages + 1))
        self.cached: set[int] = set()
        self.rows: dict[int, list[int]] = {}
        self.shared: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.flights: dict[int, list[int]] = {}
        self.held: set[int] = set()
        self.operations = 0
        self.next = 1
        self.wrote: dict[int, list[int]] = {}  # by row: the generation that computed the KV of each position
        self.generation: dict[int, int] = {}
        self.pages_wrote: dict[int, list[int]] = {}  # the same of cached pages

    def began(self, rid):
        """A residence with a new number."""
        account = self.ledger.accounts[rid]
        assert account.generation not in self.generation.values() and account.generation > 0
        self.generation[rid] = account.generation
        own = [account.generation] * 20
        expected = [*self.wrote[rid][: account.committed], *own]
        firsts = list(account.writers)
        assert firsts[0] == 0 and firsts == sorted(firsts) and firsts[-1] == account.committed
        for position, writer in enumerate(expected):
            assert account.writers[max(first for first in firsts if first <= position)] == writer

    def some_row(self, data):
        return data.draw(st.sampled_from(sorted(set(self.rows) - self.held)))

    def pins(self, page):
        return sum(page in row[: self.shared[rid]] for rid, row in self.rows.items())

    @rule(data=st.data())
    def open(self, data):
        pages = data.draw(st.lists(st.sampled_from(sorted(self.cached)), unique=True)) if self.cached else []
        account = self.ledger.open(self.next, pages)
        self.rows[self.next], self.shared[self.next], self.flights[self.next] = list(pages), len(pages), []
        self.committed[self.next] = len(pages) * self.size
        self.kept[self.next] = 0
        self.wrote[self.next] = [by for page in pages for by in self.pages_wrote[page]]
        self.began(self.next)
        assert (account.rid, account.committed, account.flying) == (self.next, self.committed[self.next], 0)
        self.next += 1
        self.operations += 1

    @precondition(lambda self: set(self.rows) - self.held)
    @rule(data=st.data(), width=st.integers(1, 9))
    def reserve(self, data, width):
        rid = self.some_row(data)
        end = self.committed[rid] + sum(self.flights[rid]) + width
        missing = 0
        while (len(self.rows[rid]) + missing) * self.size < end:
            missing += 1
        assert self.ledger.shortfall(rid, width) == [max(0, missing - len(self.free))]
        if missing > len(self.free):
            with pytest.raises(OutOfPages, match=f"{rid} needs {missing} full-attention pages, {len(self.free)} are"):
                self.ledger.reserve(rid, width)
            return
        (added,) = self.ledger.reserve(rid, width) or [()]
        assert len(added) == missing and set(added) <= self.free
        self.free -= set(added)
        self.rows[rid] += added
        self.operations += 1

    @precondition(lambda self: set(self.rows) - self.held)
    @rule(data=st.data(), width=st.integers(1, 9))
    def launch(self, data, width):
        rid = self.some_row(data)
        if self.committed[rid] + sum(self.flights[rid]) + width > len(self.rows[rid]) * self.size:
            with pytest.raises(LedgerError, match=f"launch: request {rid} would write {width} positions after"):
                self.ledger.launch(rid, width)
            return
        self.ledger.launch(rid, width)
        self.flights[rid].append(width)
        self.operations += 1

    @precondition(lambda self: any(self.flights.values()))
    @rule(data=st.data())
    def settle(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if f)))
        accepted = data.draw(st.integers(0, self.flights[rid][0]))
        self.ledger.settle(rid, accepted)
        self.flights[rid].pop(0)
        self.wrote[rid][self.committed[rid] : self.committed[rid] + accepted] = [self.generation[rid]] * accepted
        self.committed[rid] += accepted
        self.operations += 1

    @precondition(lambda self: set(self.rows) - self.held)
    @rule(data=st.data())
    def donate(self, data):
        rid = self.some_row(data)
        if self.kept[rid]:
            with pytest.raises(LedgerError, match=f"donate: account {rid} was held"):
                self.ledger.donate(rid, 0)
            return
        whole = self.committed[rid] // self.size - self.shared[rid]
        count = data.draw(st.integers(0, whole))
        given = self.ledger.donate(rid, count)
        assert list(given) == self.rows[rid][self.shared[rid] : self.shared[rid] + count]
        self.cached |= set(given)
        for index, page in enumerate(given, self.shared[rid]):
            self.pages_wrote[page] = self.wrote[rid][index * self.size : (index + 1) * self.size]
        self.shared[rid] += count
        self.operations += 1
        with pytest.raises(LedgerError, match=r"committed, less than .* whole pages"):
            self.ledger.donate(rid, whole - count + 1)

    @precondition(lambda self: any(not f and self.committed[r] for r, f in self.flights.items() if r not in self.held))
    @rule(data=st.data())
    def hold(self, data):
        idle = [r for r, f in self.flights.items() if not f and self.committed[r] and r not in self.held]
        rid = data.draw(st.sampled_from(sorted(idle)))
        least = max(1, self.shared[rid] * self.size)
        most = max(self.committed[rid], self.kept[rid])
        for wrong in (least - 1, most + 1):
            with pytest.raises(LedgerError, match=f"hold: request {rid} cannot keep {wrong} positions"):
                self.ledger.hold(rid, wrong)
        keep = data.draw(st.integers(least, most))
        stay = [page for i, page in enumerate(self.rows[rid]) if i * self.size < keep]
        assert [page for gone in self.ledger.hold(rid, keep) for page in gone] == self.rows[rid][len(stay) :]
        self.free |= set(self.rows[rid][len(stay) :])
        self.rows[rid], self.committed[rid], self.kept[rid] = stay, keep, keep
        del self.wrote[rid][keep:]
        self.held.add(rid)
        self.operations += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def resume(self, data):
        rid = data.draw(st.sampled_from(sorted(self.held)))
        for operation in (self.ledger.reserve, self.ledger.launch, self.ledger.donate, self.ledger.hold):
            with pytest.raises(LedgerError, match=f"account {rid} is held; resume it first"):
                operation(rid, 1)
        most = self.committed[rid] - self.shared[rid] * self.size
        for wrong in (-1, most + 1):
            with pytest.raises(LedgerError, match=f"resume: account {rid} cannot recompute {wrong} of its"):
                self.ledger.resume(rid, wrong)
        again = data.draw(st.integers(0, most))
        self.committed[rid] -= again
        assert self.ledger.resume(rid, again).committed == self.committed[rid]
        self.began(rid)
        self.held.remove(rid)
        self.operations += 1

    @precondition(lambda self: any(not f for f in self.flights.values()))
    @rule(data=st.data())
    def close(self, data):
        rid = data.draw(st.sampled_from(sorted(r for r, f in self.flights.items() if not f)))
        self.ledger.close(rid)
        self.free |= set(self.rows[rid][self.shared[rid] :])
        for held in (self.rows, self.shared, self.committed, self.kept, self.flights):
            del held[rid]
        self.held.discard(rid)
        self.operations += 1

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def evict(self, data):
        page = data.draw(st.sampled_from(sorted(self.cached)))
        if self.pins(page):
            with pytest.raises(LedgerError, match=f"evict: page {page} is used by {self.pins(page)} rows"):
                self.ledger.evict(page)
            return
        self.ledger.evict(page)
        self.cached.remove(page)
        self.free.add(page)
        self.operations += 1

    @invariant()
    def law_1_each_page_has_one_owner(self):
        private = {page: rid for rid, row in self.rows.items() for page in row[self.shared[rid] :]}
        for page in range(1, self.group.num_pages + 1):
            owner = FREE if page in self.free else CACHE if page in self.cached else private[page]
            assert self.group.owner[page] == owner
        assert sorted(self.group.free) == sorted(self.free)

    @invariant()
    def law_2_a_private_page_is_in_one_row(self):
        rows = {a.rid: a.groups[0] for a in self.ledger.accounts.values()}
        private = [page for own in rows.values() for page in own.pages[own.shared :]]
        assert len(private) == len(set(private))
        assert {rid: own.pages for rid, own in rows.items()} == self.rows

    @invariant()
    def law_3_what_is_counted_is_reserved(self):
        for rid, account in self.ledger.accounts.items():
            assert account.committed == self.committed[rid] and list(account.in_flight) == self.flights[rid]
            assert self.shared[rid] * self.size <= account.committed
            assert account.committed + account.flying <= len(self.rows[rid]) * self.size

    @invariant()
    def law_4_pins_count_rows(self):
        assert self.group.pins == {page: self.pins(page) for page in self.cached}
        private = sum(len(row) - self.shared[rid] for rid, row in self.rows.items())
        assert (*self.ledger.counts[1:], self.ledger.counts.held) == (len(self.free), len(self.cached), private)

    @invariant()
    def law_5_a_cached_page_is_whole(self):
        for rid, row in self.rows.items():
            assert self.committed[rid] // self.size >= sum(page in self.cached for page in row)

    @invariant()
    def law_7_a_held_account_keeps_no_more_than_it_needs(self):
        assert {rid for rid, a in self.ledger.accounts.items() if a.held} == self.held
        for rid in self.held:
            assert not self.flights[rid] and (len(self.rows[rid]) - 1) * self.size < self.committed[rid]

    @invariant()
    def only_operations_are_journalled(self):
        assert len(self.ledger.journal) == 1 + self.operations

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        again = replay(self.ledger.journal)
        (group,) = again.groups
        assert (group.owner, group.free, group.pins) == (self.group.owner, self.group.free, self.group.pins)
        assert again.journal == self.ledger.journal


LedgerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
TestLedger = LedgerMachine.TestCase


def two_requests() -> Ledger:
    """Pages of 2; request 1 with one cached page and a step in flight, request 2 on the same cached page."""
    ledger = Ledger(FullAttention(6, 2), strict=True)
    ledger.open(1)
    ledger.reserve(1, 5)
    ledger.launch(1, 3)
    ledger.settle(1, 3)
    ledger.donate(1, 1)
    ledger.open(2, ledger.accounts[1].groups[0].pages[:1])
    ledger.reserve(2, 1)
    ledger.launch(1, 2)
    return ledger


@pytest.mark.parametrize(("operation", "arguments", "sentence"), table(__file__)["illegal"])
def test_an_illegal_operation_raises_and_changes_nothing(operation, arguments, sentence):
    ledger = two_requests()
    journal = list(ledger.journal)
    with pytest.raises(LedgerError, match=f"^{re.escape(sentence)}"):
        getattr(ledger, operation)(*arguments)
    ledger.check()
    assert ledger.journal == journal


@pytest.mark.parametrize("shape", [(0, 1), (1, 0)])
def test_a_ledger_of_nothing_is_refused(shape):
    with pytest.raises(LedgerError, match=f"at least one page of at least one token, got {shape[0]} x {shape[1]}"):
        FullAttention(*shape)


def second_page_cached_in_part(ledger):
    account, own = ledger.accounts[2], ledger.accounts[2].groups[0]
    own.shared, account.committed, ledger.groups[0].pins[own.pages[1]] = 2, 3, 1


def row_on_an_uncached_page(ledger):
    ledger.accounts[2].groups[0].shared, ledger.accounts[2].committed = 2, 4


def cached_in_part(ledger):
    ledger.accounts[2].committed = 1


def held_with_a_page_too_many(ledger):
    ledger.accounts[2].held = True


# What breaks a law by hand, and how it is named. Of one account: the first five.
BROKEN = [
    (held_with_a_page_too_many, "law 7: account 2 is held with 2 positions committed, 0 in flight, and 4 reserved"),
    (lambda one: one.accounts[1].in_flight.append(2), "law 3: account 1 has 3 positions committed, 4 in flight, and 6"),
    (lambda one: set_item(one.accounts[1].groups[0].pages, 2, 7), "law 1: account 1 has full-attention page 7, which"),
    (lambda one: set_item(one.groups[0].owner, 2, 2), "law 1: account 1 has full-attention page 2, which is not"),
    (cached_in_part, "law 5: account 2 has 1 positions committed, and 2 in cached pages"),
    (lambda one: one.groups[0].free.remove(6), "law 1: full-attention page 6 has 0 owners"),
    (lambda one: one.groups[0].free.append(6), "law 1: full-attention page 6 has 2 owners and is recorded for 0"),
    (lambda one: one.groups[0].free.append(7), "law 1: full-attention page 7 has 1 owners"),
    (lambda one: set_item(one.groups[0].pins, 2, 0), "law 1: full-attention page 2 has 2 owners and is recorded for 1"),
    (lambda one: one.accounts[2].groups[0].pages.append(2), "law 2: full-attention page 2 is in the rows of 1 and 2"),
    (second_page_cached_in_part, "law 5: account 2 has 3 positions committed, and 4 in cached pages"),
    (lambda one: set_item(one.groups[0].pins, 1, 3), "law 4: full-attention page 1 has 3 pins, but 2 users"),
    (row_on_an_uncached_page, "law 4: account 2 uses full-attention page 4, which is not cached"),
]


@pytest.mark.parametrize(("change", "sentence"), BROKEN)
def test_a_law_broken_by_hand_is_named(change, sentence):
    ledger = two_requests()
    change(ledger)
    with pytest.raises(LedgerError, match=f"^{sentence}"):
        ledger.check()


@pytest.mark.parametrize(("change", "sentence"), BROKEN[:5])
def test_check_row_finds_violations_of_its_own_account(change, sentence):
    ledger = two_requests()
    change(ledger)
    rid = int(sentence.partition("account ")[2][0])
    ledger.check_row(3 - rid)
    ledger.check_row(99)
    with pytest.raises(LedgerError, match=f"^{sentence[:6]}"):
        ledger.check_row(rid)


def test_strict_checks_the_laws_after_every_operation():
    ledger = two_requests()
    ledger.groups[0].free.append(6)
    with pytest.raises(LedgerError, match="law 1"):
        ledger.settle(1, 1)
    ledger = two_requests()
    ledger.strict = False
    ledger.groups[0].free.append(6)
    ledger.settle(1, 1)


def test_a_subscriber_gets_every_entry_and_the_ledger_keeps_the_latest():
    ledger = Ledger(FullAttention(2, 1))
    ledger.open(1)
    seen: list[Entry] = []
    ledger.subscribe(seen.append)
    for rid in range(2, KEPT // 2 + 1):
        ledger.open(rid)
        ledger.close(rid)
    assert ledger.journal == seen and len(seen) == KEPT
    ledger.open(KEPT)
    assert len(seen) == KEPT + 1 and seen[-1] == ("open", KEPT, 0, ())
    assert replay(seen).accounts.keys() == {1, KEPT}
    sentence = f"^the journal keeps only the latest {KEPT} of its {KEPT + 1} entries; subscribe earlier$"
    for late in (lambda: ledger.journal, lambda: ledger.subscribe(seen.append)):
        with pytest.raises(EngineError, match=sentence):
            late()
    assert len(seen) == KEPT + 1
