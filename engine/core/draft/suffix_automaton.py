"""A suffix automaton over a fixed corpus: finds a text's longest suffix in it, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

# Separates documents; it occurs in no text, so nothing is matched or drafted across documents.
BREAK: Final = -1


class SuffixAutomaton:
    """Every substring of the documents, in at most twice as many states as tokens.

    Blumer et al. 1985. State 0 is the empty string. `count` of a state is its strings' number of occurrences.
    """

    def __init__(self, documents: Iterable[Sequence[int]]) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        last = 0
        for document in documents:
            for token in (*document, BREAK):
                last = self._append(last, token)
        for state in sorted(range(1, len(self.link)), key=self.length.__getitem__, reverse=True):
            self.count[self.link[state]] += self.count[state]

    def _append(self, last: int, token: int) -> int:
        state = self._state({}, self.length[last] + 1, 0, 1)
        before = last
        while before >= 0 and token not in self.following[before]:
            self.following[before][token] = state
            before = self.link[before]
        if before < 0:
            return state
        found = self.following[before][token]
        if self.length[found] == self.length[before] + 1:
            self.link[state] = found
            return state
        # The strings of `found` up to this length now end here too, so they get their own state.
        clone = self._state(dict(self.following[found]), self.length[before] + 1, self.link[found], 0)
        while before >= 0 and self.following[before].get(token) == found:
            self.following[before][token] = clone
            before = self.link[before]
        self.link[found] = self.link[state] = clone
        return state

    def _state(self, following: dict[int, int], length: int, link: int, count: int) -> int:
        self.following.append(following)
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        return len(self.link) - 1

    def step(self, state: int, token: int) -> int:
        """The state of the corpus's longest suffix of (the text of `state`, then `token`)."""
        while state >= 0 and token not in self.following[state]:
            state = self.link[state]
        return 0 if state < 0 else self.following[state][token]

    def follow(self, state: int, limit: int) -> list[int]:
        """Up to `limit` tokens, each the most frequent continuation of the previous ones; [] without a match."""
        found: list[int] = []
        while state and len(found) < limit:
            after = [(self.count[to], -token) for token, to in self.following[state].items() if token != BREAK]
            if not after:
                break
            found.append(-max(after)[1])
            state = self.following[state][found[-1]]
        return found
