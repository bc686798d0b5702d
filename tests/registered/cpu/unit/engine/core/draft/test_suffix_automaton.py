"""The suffix automaton against a search through the corpus."""

from __future__ import annotations

import random

import pytest

from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton


def occurrences(documents, needle):
    size = len(needle)
    return [(d, i) for d in documents for i in range(len(d) - size + 1) if tuple(d[i : i + size]) == tuple(needle)]


def longest(documents, text):
    """The longest suffix of the text that occurs in a document."""
    return next(text[i:] for i in range(len(text) + 1) if not text[i:] or occurrences(documents, text[i:]))


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_the_longest_suffix_and_counts_where_it_stands(seed):
    rng = random.Random(seed)
    documents = [[rng.randrange(3) for _ in range(rng.randrange(1, 25))] for _ in range(4)]
    automaton = SuffixAutomaton(documents)
    text: list[int] = []
    state = 0
    for _ in range(40):
        text.append(rng.randrange(4))
        state = automaton.step(state, text[-1])
        suffix = longest(documents, text)
        assert bool(state) == bool(suffix)
        if suffix:
            assert automaton.count[state] == len(occurrences(documents, suffix))
            assert automaton.length[automaton.link[state]] < len(suffix) <= automaton.length[state]


@pytest.mark.parametrize("seed", range(8))
def test_it_follows_the_most_frequent_token(seed):
    rng = random.Random(100 + seed)
    documents = [[rng.randrange(3) for _ in range(20)] for _ in range(3)]
    automaton = SuffixAutomaton(documents)
    text = documents[0][3:5]
    state = 0
    for token in text:
        state = automaton.step(state, token)
    for token in automaton.follow(state, 6):
        suffix = longest(documents, text)
        counts = {t: len(occurrences(documents, [*suffix, t])) for t in range(3)}
        assert token == min(t for t in counts if counts[t] == max(counts.values()))
        text = [*text, token]


def test_nothing_is_followed_past_a_documents_end_or_without_a_match():
    automaton = SuffixAutomaton([(1, 2), (3, 4)])
    assert automaton.follow(automaton.step(0, 1), 9) == [2]
    assert automaton.follow(automaton.step(0, 2), 9) == []
    assert automaton.follow(automaton.step(0, 7), 9) == automaton.follow(0, 9) == []
    assert automaton.follow(automaton.step(0, 3), 0) == []


def test_a_repetition_of_one_token_takes_few_states():
    automaton = SuffixAutomaton([(5,) * 50])
    assert len(automaton.link) <= 2 * 51
    assert automaton.count[automaton.step(0, 5)] == 50
    # The end of a document is a token too.
    assert SuffixAutomaton([(1, 2, 3)]).length == [0, 1, 2, 3, 4]
