"""Suffix trees: by hand, and the whole cache against the oracle's on random texts."""

import random
from dataclasses import asdict

import pytest

from specmatrix.engine.core.draft.suffix_tree import SuffixCache, SuffixOptions, SuffixTree
from specmatrix.matrix.oracles.suffixes import Suffixes

WIDE = {"max_spec_offset": 9.0}


@pytest.mark.parametrize(
    ("texts", "options", "context", "draft"),
    [
        # A match of m tokens allows m drafts; the longer of two equally good matches wins.
        (["abcd"], {}, "xab", "cd"),
        (["abcd"], {}, "b", ""),  # the whole context is no match
        (["abcd"], {"max_spec_factor": 0.5}, "xab", "c"),
        (["abcd"], WIDE | {"max_tree_depth": 3}, "xab", "cd"),
        (["ab1", "zb2"], {}, "xab", "1"),
        # The most counted child; of equal counts the one that was first of its count before comes first.
        (["ab", "ac", "ac"], {}, "xa", "c"),
        (["ab", "ac"], {}, "xa", "b"),
        (["ab", "ac", "ac", "ab"], {}, "xa", "b"),
        (["ab", "ac", "ac", "ad", "ad"], {}, "xa", "c"),
        # A path ends where the product of its shares is below the least.
        (["ab1", "ac", "ab2"], WIDE, "xa", "b1"),
        (["ab1", "ac", "ab2"], WIDE | {"min_token_prob": 0.5}, "xa", "b"),
        (["ab1", "ac", "ab2"], WIDE | {"min_token_prob": 0.7}, "xa", ""),
    ],
)
def test_drafts_by_hand(texts, options, context, draft):
    made = SuffixOptions(**options)
    tree = SuffixTree(made.max_tree_depth)
    for text in texts:
        ends = []
        for token in text:
            ends = tree.add(ends, ord(token))
    found = tree.draft([*map(ord, context)], made, 24)
    assert "".join(map(chr, found.tokens)) == draft
    assert found.tokens[:1] == tree.draft([*map(ord, context)], made, 1).tokens


# The last token occurs in an output, in a prompt, and in outputs that the third and the fourth request evict.
@pytest.mark.parametrize(("last", "draft"), [(9, (10,)), (8, ()), (3, ()), (6, ())])
def test_only_outputs_of_the_latest_requests_are_shared(last, draft):
    cache = SuffixCache(SuffixOptions(max_cached_requests=2), rows=9)
    for key, text in enumerate(([1, 2, 3, 4], [1, 5, 6, 7], [1, 8, 9, 10])):
        cache.draft(key, text, 2, 0)
    assert cache.draft(7, [1, 0, last], 2, 9) == draft


def test_a_text_that_comes_back_is_taken_in_once():
    few = SuffixCache(SuffixOptions(), rows=1)
    for key in (0, 1, 0, 1):
        few.draft(key, [1, 2, 3 + key], 1, 0)
    assert few.tree.root.children[2].count == 2


# In the last ones sums of probabilities are equal but for the order in which they are rounded.
@pytest.mark.parametrize("seed", [*range(12), 45, 93, 169])
def test_it_drafts_the_same_as_the_oracle(seed):
    dice = random.Random(seed)
    pick = dice.choice
    sizes = pick([2, 3, 5, 24]), pick([0, 1, 2, 3, 10_000])
    options = SuffixOptions(*sizes, pick([0.5, 1.0, 2.0]), pick([0.0, 1.0, -1.0]), pick([0.0, 0.1, 0.3, 0.5]))
    rows, vocab, texts, drafted = pick([1, 2, 9]), pick([2, 3, 6]), {}, 0
    cache, judge = SuffixCache(options, rows), Suffixes(asdict(options), rows)
    for step in range(120):
        if len(texts) < 4:
            prompt = dice.randint(1, 12)
            texts[step] = [dice.randrange(vocab) for _ in range(prompt)], prompt
        key = pick([*texts])
        text, prompt = texts[key]
        text += [dice.randrange(vocab) for _ in range(dice.randint(1, 5))]
        room = pick([0, 1, 3, 24])
        found = cache.draft(key, text, prompt, room)
        assert found == tuple(map(ord, judge.draft(key, "".join(map(chr, text)), prompt, room)))
        drafted += bool(found)
        if dice.random() < 0.1:
            del texts[key]
    assert drafted or options.max_spec_offset < 0
