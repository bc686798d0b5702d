"""The prefix cache: whole pages, keys that reach past a page's end, leaves out first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.memory.groups import FullAttention
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache


def cache_of(pages=20, size=2, span=0, enabled=True):
    ledger = Ledger(FullAttention(pages, size), strict=True)
    return ledger, PrefixCache(ledger, span, enabled)


def run(ledger, cache, rid, tokens, committed=None, close=True):
    """One request from match to insert, as the loop does it. Returns (cached pages, donated pages)."""
    pages = cache.match(tokens)
    account = ledger.open(rid, pages)
    rest = (len(tokens) if committed is None else committed) - account.committed
    ledger.reserve(rid, rest)
    ledger.launch(rid, rest)
    ledger.settle(rid, rest)
    given = cache.insert(rid, tokens)
    if close:
        ledger.close(rid)
    return pages, given


def test_a_duplicate_stays_private_and_returns_at_the_close():
    ledger, cache = cache_of(pages=9)
    for rid in (1, 2, 3):
        ledger.open(rid, cache.match([1, 2, 3, 4, 5]))
        ledger.reserve(rid, 5)
        ledger.launch(rid, 5)
        ledger.settle(rid, 5)
    assert [cache.insert(rid, [1, 2, 3, 4, 5]) for rid in (1, 2, 3)] == [2, 0, 0]
    assert cache.duplicates == 2
    assert ledger.accounts[2].groups[0].shared == 0
    ledger.close(3)
    ledger.close(2)
    assert ledger.counts.free == 6
    ledger.close(1)
    assert ledger.counts == (9, 7, 2)


def test_leaves_go_first_and_the_least_recently_used_before_others():
    ledger, cache = cache_of()
    run(ledger, cache, 1, [1, 1, 2, 2, 0])  # pages a, b
    run(ledger, cache, 2, [1, 1, 3, 3, 0])  # page c beside b
    run(ledger, cache, 3, [4, 4, 0])  # page d
    cache.match([1, 1, 2, 2, 0])  # b and its parent are the freshest
    assert cache.evict(1) == 1
    assert [len(cache.match(t)) for t in ([1, 1, 3, 3, 0], [1, 1, 2, 2, 0], [4, 4, 0])] == [1, 2, 1]
    assert cache.evict(1) == 1  # b was matched before d
    assert [len(cache.match(t)) for t in ([1, 1, 2, 2, 0], [4, 4, 0])] == [1, 1]
    assert cache.evict(9) == 2
    assert (ledger.counts, cache.evict(1)) == ((20, 20, 0), 0)


def test_pinned_pages_are_not_evicted():
    ledger, cache = cache_of()
    run(ledger, cache, 1, [1, 2, 3, 4, 5], close=False)
    assert (ledger.groups[0].evictable, cache.evict(5)) == (0, 0)
    ledger.close(1)
    ledger.open(2, cache.match([1, 2, 9]))
    assert (ledger.groups[0].evictable, cache.evict(5)) == (1, 1)
    ledger.close(2)
    assert (ledger.groups[0].evictable, cache.evict(5)) == (1, 1)


def test_a_cache_that_is_off_keeps_nothing():
    ledger, cache = cache_of(enabled=False)
    assert run(ledger, cache, 1, [1, 2, 3, 4, 5]) == ([], 0)
    assert cache.match([1, 2, 3, 4, 5]) == [] and ledger.counts.cached == 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=8),
    size=st.integers(1, 3),
    span=st.integers(0, 1),
    last=st.lists(st.integers(0, 1), min_size=1, max_size=12),
)
def test_a_match_is_the_longest_run_of_pages_whose_keys_were_seen(prompts, size, span, last):
    ledger, cache = cache_of(pages=100, size=size, span=span)
    seen = set()
    for rid, tokens in enumerate(prompts, 1):
        run(ledger, cache, rid, tokens)
        seen |= {tuple(tokens[:end]) for end in range(len(tokens) + 1)}
    longest = 0
    while (longest + 1) * size <= len(last) - 1 and (longest + 1) * size + span <= len(last):
        if tuple(last[: (longest + 1) * size + span]) not in seen:
            break
        longest += 1
    assert len(cache.match(last)) == longest


def test_a_chain_of_thousands_of_pages_is_matched_evicted_and_dropped():
    ledger = Ledger(FullAttention(5_000, 1))
    cache = PrefixCache(ledger, 1)
    tokens = [index % 7 for index in range(5_001)]
    ledger.open(1)
    ledger.reserve(1, 5_000)
    ledger.launch(1, 5_000)
    ledger.settle(1, 5_000)
    assert cache.insert(1, tokens) == 5_000
    ledger.close(1)
    assert len(cache.match(tokens)) == 5_000 and cache.evict(4_000) == 4_000
    assert len(cache.match(tokens)) == 1_000 and len(cache.nodes) == 1_000
