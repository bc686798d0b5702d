"""The states of a suffix automaton; what it drafts is compared in `matrix.oracles`."""

from __future__ import annotations

from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton


def test_a_repetition_of_one_token_takes_few_states():
    automaton = SuffixAutomaton([(5,) * 50])
    assert len(automaton.link) <= 2 * 51
    assert automaton.count[automaton.step(0, 5)] == 50
    # The end of a document is a token too.
    assert SuffixAutomaton([(1, 2, 3)]).length == [0, 1, 2, 3, 4]
