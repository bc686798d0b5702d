"""The n-gram index when it is full, and padding; its drafts are compared with the oracle's in `matrix.oracles`."""

from __future__ import annotations

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
