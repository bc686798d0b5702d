"""Suffix trees: by hand, and the whole cache against the oracle's on random texts."""

import gc
import random
from array import array
from collections import Counter
from dataclasses import asdict

import pytest

from specmatrix.engine.core.draft import suffix_tree
from specmatrix.engine.core.draft.suffix_tree import GIB, ROOT, TOKEN_BYTES, SuffixCache, SuffixOptions, Text
from specmatrix.matrix.oracles.ngram import Suffixes

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
    cache = SuffixCache(made, 9)
    for key, text in enumerate(texts):
        cache.draft(key, [key, *map(ord, text)], 1, 0)
    found = cache.draft(-1, [*map(ord, context)], len(context), 24)
    assert "".join(map(chr, found)) == draft
    assert found[:1] == cache.draft(-1, [*map(ord, context)], len(context), 1)


def windows_of(texts, depth):
    """How often each window of what is left of the texts occurs."""
    left = [tuple(text.tokens[text.gone :]) for text in texts]
    spans = ((one, start, size) for one in left for start in range(len(one)) for size in range(1, depth + 1))
    return Counter(one[start : start + size] for one, start, size in spans if start + size <= len(one))


def counted(tree, node=ROOT, place=0, path=()):
    children = tree.children(node, place) if node else ((tree.token[n], n, tree.count[n]) for n in siblings(tree))
    for token, child, count in children:
        yield (*path, token), count
        yield from counted(tree, child, place + 1, (*path, token))


def siblings(tree):
    child = tree.first[ROOT]
    while child:
        yield child
        child = tree.after[child]


@pytest.mark.parametrize("seed", range(24))
def test_a_tree_counts_the_windows_of_what_is_left_of_its_texts_in_few_nodes(seed):
    dice = random.Random(seed)
    depth, vocab = dice.choice([1, 2, 3, 5, 8]), dice.choice([1, 2, 3, 5])
    tree, texts = suffix_tree.SuffixTree(depth, dice.random() < 0.5), [Text() for _ in range(4)]
    for _ in range(80):
        place = dice.randrange(4)
        for _ in range(dice.randint(1, 4)):
            tree.add(texts[place], dice.randrange(vocab))
        for _ in range(dice.choice([0, 0, 0, 2, 6])):
            if tree.texts:
                tree.forget()
        if dice.random() < 0.2:
            texts[place] = Text()
        left = windows_of(tree.texts.values(), depth)
        assert dict(counted(tree)) == left and tree.windows == len(left)
        for text in tree.texts.values():
            left_of = tuple(text.tokens[text.gone :])
            again = [size for size in range(depth - 1, 0, -1) if size <= len(left_of) and left[left_of[-size:]] > 1]
            assert [tree.end[node] for node in text.ends if tree.end[node] < depth] == again


def nbytes(tree):
    arrays = (*tree.columns, tree.table, *(text.tokens for text in tree.texts.values()))
    return sum(each.__sizeof__() for each in arrays)


def test_a_request_of_500_tokens_takes_less_than_its_budget_and_no_object_per_token():
    dice = random.Random(0)
    for vocab in (2, 40, 32_000):
        before, tree = len(gc.get_objects()), suffix_tree.SuffixTree(24)
        for _ in range(20):
            text = Text()
            for _ in range(500):
                tree.add(text, dice.randrange(vocab))
        assert nbytes(tree) <= 20 * 500 * TOKEN_BYTES <= 20 * 100 * 1024
        assert len(gc.get_objects()) - before < 200


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
    assert few.tree.count[few.tree.find(array("i", [2]))[0]] == 2


def test_the_oldest_outputs_give_way_before_a_budget_is_exceeded_and_then_the_texts_drafted_for_longest_ago():
    dice, sizes = random.Random(2), []
    cache = SuffixCache(SuffixOptions(max_gb=(400 * TOKEN_BYTES + 9 * suffix_tree.TEXT_BYTES) / GIB), rows=9)
    for key in range(12):
        text = [dice.randrange(9) for _ in range(60)]
        for end in (30, 45, 60):
            cache.draft(key, text[:end], 10, 9)
            sizes.append(cache.size)
        if key != 4:
            cache.forget(key)
    assert max(sizes) <= cache.options.max_gb * GIB < max(sizes) + 60 * TOKEN_BYTES
    assert [*cache.outputs] == [7, 8, 9, 10, 11] and [*cache.tree.texts.values()] == [*cache.outputs.values()]
    assert nbytes(cache.tree) < cache.options.max_gb * GIB and [*cache.readers] == [4]
    cache.draft(12, [1] * 340, 1, 9)
    assert [*cache.outputs] == [] and [*cache.readers] == [12]


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
        text, prompt = texts[key := pick([*texts])]
        text += [dice.randrange(vocab) for _ in range(dice.randint(1, 5))]
        room = pick([0, 1, 3, 24])
        found = cache.draft(key, text, prompt, room)
        assert found == tuple(map(ord, judge.draft(key, "".join(map(chr, text)), prompt, room)))
        drafted += bool(found)
        if dice.random() < 0.1:
            del texts[key]
    assert drafted or options.max_spec_offset < 0
