"""The oracle's cache of whole pages: matches, followers and age."""

from specmatrix.matrix.oracles.page_trie import PageTrie

A = (1, 2, 3, 4, 5, 6, 7)
B = (1, 2, 8, 9, 5, 6, 7)


def filled(span: int = 0) -> PageTrie:
    trie = PageTrie(2, span)
    trie.insert(A, (), (11, 12, 13))
    trie.insert(B, (11,), (22, 23))
    return trie


def test_a_text_matches_its_longest_beginning_and_leaves_a_token():
    trie = filled()
    assert trie.match(A) == [11, 12, 13] and trie.match(A[:6]) == [11, 12] and trie.match(B) == [11, 22, 23]
    assert trie.match((1, 2, 3)) == [11] and trie.match((2, 1, 3)) == [] and trie.size == 5


def test_a_span_must_match_too():
    trie = PageTrie(2, 1)
    trie.insert(A, (), (11, 12, 13))
    assert trie.match((1, 2, 3, 9)) == [11] and trie.match((1, 2, 9, 9)) == []


def test_only_the_page_after_the_rows_own_can_be_there_already():
    trie = filled()
    assert trie.missing(A, (), 6) == 0 and trie.missing(B, (11,), 6) == 0
    assert trie.missing((1, 2, 7, 7, 7, 7), (11,), 6) == 2 and trie.missing((1, 2, 7, 7), (11,), 3) == 0
    assert PageTrie(2, 1).missing(A[:6], (), 6) == 2


def test_the_least_recently_used_page_without_followers_is_the_oldest():
    trie = filled()
    assert trie.oldest(set()) == [13]
    trie.match(A)
    assert trie.oldest(set()) == [23] and trie.oldest({23}) == [13] and trie.oldest({13, 23}) == []
    trie.remove(23)
    assert trie.oldest(set()) == [22]
    trie.remove(22)
    trie.remove(13)
    assert trie.oldest(set()) == [12] and trie.match(A) == [11, 12]
