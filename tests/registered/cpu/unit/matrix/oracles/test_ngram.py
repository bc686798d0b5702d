"""The oracle's index: by hand, and against the engine's on random texts."""

import random
import re
from dataclasses import asdict

import pytest

from specmatrix.engine.core.draft.ngram_index import NgramIndex, NgramOptions
from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton
from specmatrix.engine.core.draft.suffix_tree import SuffixTree
from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.device import logit_rules
from specmatrix.matrix.conformance.random_trees import (
    first_mixed_rule,
    first_wrong_draft,
    first_wrong_room,
    first_wrong_suffix,
)
from specmatrix.matrix.oracles.ngram import Grams


def grams(texts: list[str], options: dict[str, object] | None = None) -> Grams:
    made = Grams(asdict(NgramOptions(**(options or {}))))
    for text in texts:
        made.show(text, 0)
    return made


PROB, WIDE = {"match_type": "PROB"}, {"max_trie_depth": 3, "min_bfs_breadth": 1, "max_bfs_breadth": 3}


@pytest.mark.parametrize(
    ("texts", "options", "asked", "drafts"),
    [
        # The longest match, and then the most recent continuation.
        (["xab1", "yab2", "b3"], {}, ("xab", 3, 1, 2), {"", "1", "1\x00"}),
        (["xab1", "yab2", "b3"], {}, ("zab", 4, 3, 1), {"", "2", "1", "3"}),
        (["xab1", "yab2", "b3"], {}, ("zab", 2, 3, 1), {"", "2"}),
        # The most frequent first on request: a path is as likely as all of its tokens.
        (["ab", "ab", "ac"], {}, ("a", 2, 2, 1), {"", "c"}),
        (["ab", "ab", "ac"], PROB, ("a", 2, 2, 1), {"", "b"}),
        (["ab1", "ab2", "ac"], PROB, ("a", 3, 2, 2), {"", "b", "c"}),
        # Windows end, and breadth falls.
        (["abcd"], {"max_trie_depth": 3}, ("zab", 3, 2, 9), {"", "c", "cd"}),
        (["abcd"], {"max_trie_depth": 2}, ("zab", 3, 2, 9), {"", "c", "\x00"}),
        (["b1", "b2"], WIDE, ("b", 3, 3, 1), {"", "2", "1"}),
        (["ab1", "ab2", "c3"], WIDE, ("cab", 3, 3, 1), {"", "2", "1"}),
        (["ab1", "ab2", "b3"], WIDE, ("cab", 3, 3, 1), {"", "2", "3"}),
    ],
)
def test_drafts_by_hand(texts, options, asked, drafts):
    assert grams(texts, options).draft(*asked) == drafts


def test_what_is_known_is_taken_in_once():
    index = grams(["ab"])
    index.show("abab", 2)
    assert index.windows == len({"a", "b", "ab", "ba", "aba", "bab", "abab"})


def test_the_corpus_goes_first_within_its_budget():
    index = Grams(asdict(NgramOptions(external_sam_budget=2)), corpus=("xabcd", "yabce", "zq"))
    index.show("cab1", 0)
    assert index.draft("wxab", 4, 2, 3) == {"", "c", "cd", "1"}
    assert index.draft("ab", 4, 1, 3) == {"", "c", "cd", "cd\x00"}  # d and e came once each
    # A document's end is followed by nothing.
    assert index.draft("wq", 2, 2, 3) == index.draft("w", 2, 2, 3) == {"", "\x00"}


@pytest.mark.parametrize("seed", range(3))
def test_it_quotes_the_corpus_as_the_engines_automaton_does(seed):
    dice = random.Random(seed)
    documents = [[dice.randrange(4) for _ in range(dice.randrange(1, 40))] for _ in range(5)]
    automaton = SuffixAutomaton(documents)
    judge = Grams(asdict(NgramOptions(external_sam_budget=4)), tuple("".join(map(chr, each)) for each in documents))
    text, state = [], 0
    for _ in range(200):
        text.append(dice.randrange(5))
        state = automaton.step(state, text[-1])
        assert list(map(ord, judge.from_corpus("".join(map(chr, text)), 4))) == automaton.follow(state, 4)


@pytest.mark.parametrize(
    ("wrong", "owner", "name", "said"),
    [
        (lambda seed: first_wrong_draft("BFS", seed), NgramIndex, "_by_level", "in one of draft and oracle only"),
        (lambda seed: first_wrong_draft("PROB", seed), NgramIndex, "_by_share", "in one of draft and oracle only"),
        (first_wrong_suffix, SuffixTree, "_fall", ", behind ["),
        (first_wrong_room, SlidingWindow, "budget", "is admitted into 2 window pages; it needs "),
    ],
)
def test_random_texts_and_requests_find_what_is_broken(wrong, owner, name, said, monkeypatch):
    assert not any(map(wrong, range(5)))
    monkeypatch.setattr(owner, name, lambda *_: 2)
    assert said in wrong(0)


def test_random_texts_show_a_capacity_of_windows_alone(monkeypatch):
    def learn(self, text, tokens):
        for token in tokens[len(text.tokens) :]:
            self.tree.add(text, token)
            while self.tree.windows > self.options.capacity:
                self.tree.forget()

    assert not any(first_wrong_draft("PROB", seed) for seed in range(1, 21, 2))
    monkeypatch.setattr(NgramIndex, "learn", learn)
    assert any(first_wrong_draft("PROB", seed) for seed in range(1, 21, 2))


def test_random_batches_show_a_neighbours_temperature(monkeypatch):
    own = logit_rules.without_unlikely

    def warmest(logits, heat, min_p):
        return own(logits, heat.amax().expand_as(heat), min_p)

    assert not any(map(first_mixed_rule, range(5)))
    monkeypatch.setattr(logit_rules, "without_unlikely", warmest)
    said = r"in random batch \d of 3, a request at temperature \S+ with min_p \S+ has other logits than alone"
    assert re.fullmatch(said, first_mixed_rule(3))
