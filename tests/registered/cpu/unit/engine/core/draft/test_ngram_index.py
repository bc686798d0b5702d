"""The n-gram index by hand, and against a brute-force search over its texts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from specmatrix.engine.core.draft.ngram_index import NgramDraft, NgramIndex, NgramOptions
from specmatrix.engine.core.draft.suffix_tree import Text
from tests.support.trees import depths


def index_of(*texts: tuple[int, ...], **options: object) -> NgramIndex:
    index = NgramIndex(NgramOptions(**{"max_trie_depth": 6} | options))
    for text in texts:
        index.learn(Text(), text)
    return index


def drafted(index, text, limit=9, topk=10, steps=8) -> NgramDraft:
    cursor, draft = Text(), NgramDraft()
    index.learn(cursor, text)
    index.extend(draft, cursor, limit, topk, steps)
    return draft


def paths(draft) -> list[tuple[int, ...]]:
    """Each node's tokens from the root down."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append(() if parent < 0 else (*found[parent], token))
    return found[1:]


def test_what_followed_before_is_drafted_as_deep_as_the_windows_go():
    index = index_of((1, 2, 3, 4, 5, 6, 7))
    # Two tokens match, so windows of six show four more.
    assert paths(drafted(index, (9, 1, 2))) == [(3,), (3, 4), (3, 4, 5), (3, 4, 5, 6), (3, 4, 5, 6, 7)]
    assert paths(drafted(index, (9, 1, 2), steps=2)) == [(3,), (3, 4)]
    assert paths(drafted(index, (9, 1, 2), limit=3)) == [(3,), (3, 4)]


def test_a_text_drafts_from_itself():
    index = index_of()
    assert paths(drafted(index, (5, 6, 7, 5)))[:2] == [(6,), (6, 7)]


def test_the_most_recent_comes_first_or_the_most_frequent():
    texts = ((1, 2), (1, 2), (1, 3))
    assert paths(drafted(index_of(*texts, match_type="BFS"), (9, 1))) == [(3,), (2,)]
    assert paths(drafted(index_of(*texts, match_type="PROB"), (9, 1))) == [(2,), (3,)]
    assert paths(drafted(index_of(*texts[1:], match_type="PROB"), (9, 1))) == [(3,), (2,)], "the most recent of equals"


def test_the_most_frequent_path_is_followed_before_a_rarer_sibling():
    texts = ((1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 3))
    assert paths(drafted(index_of(*texts, match_type="PROB"), (9, 1), limit=3)) == [(2,), (2, 4)]
    assert paths(drafted(index_of(*texts, match_type="BFS"), (9, 1), limit=3)) == [(3,), (2,)]


def test_the_longest_match_goes_first_and_shorter_ones_fill_the_rest():
    index = index_of((8, 1, 2), (7, 1, 3))
    assert paths(drafted(index, (8, 1))) == [(2,), (3,)]
    assert paths(drafted(index, (7, 1))) == [(3,), (2,)]
    assert paths(drafted(index, (8, 1), limit=2)) == [(2,)]


def test_breadth_falls_from_one_matched_token_to_a_whole_window():
    fans = [(*matched, 90 + i) for matched in ((1,), (2, 3, 4, 5, 1)) for i in range(5)]
    index = index_of(*fans, max_bfs_breadth=4, min_bfs_breadth=1)
    assert len(paths(drafted(index, (9, 1)))) == 4
    wide = drafted(index_of(*fans, max_bfs_breadth=4, min_bfs_breadth=4), (2, 3, 4, 5, 1), limit=2)
    assert paths(wide) == [(94,)]
    whole = NgramDraft()
    cursor = Text()
    index.learn(cursor, (2, 3, 4, 5, 1))
    cursor.ends = cursor.ends[:1]
    index.extend(whole, cursor, 9, 10, 8)
    assert len(paths(whole)) == 1


def test_no_node_gets_more_children_than_topk_though_several_matches_offer_some():
    index = index_of((8, 1, 2), (1, 3), (1, 4), (1, 5))
    assert paths(drafted(index, (8, 1), topk=2)) == [(2,), (5,)]


def test_what_is_read_in_parts_is_the_same_index():
    text = [random.Random(4).randrange(4) for _ in range(60)]
    whole, parts, cursor = index_of(text), index_of(), Text()
    for end in (1, 2, 7, 20, 21, 60):
        parts.learn(cursor, text[:end])
    for probe in ((0,), (1, 2), (3, 1, 0)):
        assert drafted(whole, probe).tokens == drafted(parts, probe).tokens
    assert whole.tree.windows == parts.tree.windows


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
@pytest.mark.parametrize("seed", range(6))
def test_every_node_occurred_after_a_suffix_of_the_text(match_type, seed):
    rng = random.Random(seed)
    texts = [[rng.randrange(4) for _ in range(rng.randrange(2, 40))] for _ in range(5)]
    index = index_of(*texts, match_type=match_type, max_bfs_breadth=3)
    text = [rng.randrange(4) for _ in range(12)]
    draft = drafted(index, text, limit=12, topk=3)
    seen = [*texts, text]
    windows = {tuple(t[i : i + size]) for t in seen for i in range(len(t)) for size in range(1, 7)}
    assert draft.depths == depths(draft.parents)
    assert len(set(paths(draft))) == len(draft) - 1
    for path in paths(draft):
        assert any((*text[-match:], *path) in windows for match in range(1, 6 - len(path) + 1))
    best = next(m for m in range(5, 0, -1) if any(w[:m] == tuple(text[-m:]) and len(w) > m for w in windows))
    followers = Counter(
        t[i + best] for t in seen for i in range(len(t) - best) if tuple(t[i : i + best]) == tuple(text[-best:])
    )
    assert draft.tokens[1] in followers
    if match_type == "PROB":
        assert followers[draft.tokens[1]] == max(followers.values())


def test_a_full_index_forgets_its_oldest_windows_only():
    index = index_of(capacity=30)
    for start in range(0, 1000, 10):
        index.learn(Text(), tuple(range(start, start + 4)))
        assert index.tree.windows <= 30
    assert paths(drafted(index, (990, 991)))[0] == (992,)
    assert not paths(drafted(index, (0, 1)))


def test_what_is_shown_again_is_young_again():
    index = index_of((1, 2), capacity=9, max_trie_depth=2)
    for start in range(10, 40, 2):
        index.learn(Text(), (1, 2))
        index.learn(Text(), (1, 2))
        index.learn(Text(), (start, start + 1))
        assert index.tree.suffixes <= 9 and len(index.tree.texts) <= 5
    assert paths(drafted(index, (1,))) == [(2,)]


@pytest.mark.parametrize(("nodes", "topk", "steps"), [(4, 1, 3), (12, 10, 11), (15, 2, 3), (7, 2, 2), (5, 4, 1)])
def test_padding_fills_the_tree_within_its_bounds_and_makes_no_equal_siblings(nodes, topk, steps):
    draft = NgramDraft()
    draft.add(0, 1)
    draft.pad(nodes, topk, steps)
    assert len(draft) == nodes and max(depths(draft.parents)) <= steps
    assert max(Counter(draft.parents[1:]).values()) <= topk
    places = list(zip(draft.parents, draft.tokens, strict=True))
    assert len(set(places)) == nodes
