"""An index of recent token windows, and drafts of what followed them. Pure: no clock, no randomness.

A suffix tree holds every window of up to `max_trie_depth` tokens of the latest texts, with counts. Tokens that followed
one of a text's suffixes earlier are drafted. When it is full, the oldest text is forgotten, from its first token on; a
window that occurs later too stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

from specmatrix.engine.core.draft.suffix_tree import SuffixTree, Text

# As SuffixTree.children gives it: the token, its node, and its count.
Child: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """Options of an n-gram drafter, under SGLang's names.

    min_bfs_breadth, max_bfs_breadth: children of a drafted node, few after a long match and many after a short one.
    match_type: BFS takes the most recent first, level by level; PROB the most frequent first.
    max_trie_depth: tokens per window, match and draft together. capacity: maximum number of windows (trie nodes),
    and of tokens that they begin with.
    external_corpus_path: JSON Lines, one document per line, or a name that the model store knows;
    external_sam_budget: maximum draft nodes taken from it;
    external_corpus_max_tokens: maximum size of the corpus.
    """

    min_bfs_breadth: int = 1
    max_bfs_breadth: int = 10
    match_type: Literal["BFS", "PROB"] = "BFS"
    max_trie_depth: int = 18
    capacity: int = 10_000_000
    external_corpus_path: str | None = None
    external_sam_budget: int = 0
    external_corpus_max_tokens: int = 10_000_000


@dataclass(slots=True)
class NgramDraft:
    """A tree under construction: node 0 is the root (token -1 here), parents precede children."""

    tokens: list[int] = field(default_factory=lambda: [-1])
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    children: list[dict[int, int]] = field(default_factory=lambda: [{}])

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """The child of `parent` with this token, created if it does not exist; siblings always differ."""
        known = self.children[parent].get(token)
        if known is not None:
            return known
        node = len(self.tokens)
        self.children[parent][token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.children.append({})
        return node

    def pad(self, nodes: int, topk: int, steps: int) -> None:
        """Fill up to `nodes` with the smallest possible tokens, shallowest position first.

        Verification is exact for any node, so padding needs no mark. Two equal siblings would both be accepted, so
        siblings always differ.
        """
        place = token = 0
        while len(self) < nodes:
            taken = self.children[place]
            if len(taken) >= topk or self.depths[place] >= steps:
                place, token = place + 1, 0
            else:
                if token not in taken:
                    self.add(place, token)
                token += 1


class NgramIndex:
    """The windows of all texts of one engine."""

    def __init__(self, options: NgramOptions) -> None:
        self.options = options
        self.tree = SuffixTree(options.max_trie_depth, recent=True)

    def learn(self, text: Text, tokens: Sequence[int]) -> None:
        """Index the tokens of a text that were not indexed before. tokens: the whole text."""
        for token in tokens[len(text.tokens) :]:
            self.tree.add(text, token)
            while max(self.tree.windows, self.tree.suffixes) > self.options.capacity:
                self.tree.forget()

    def extend(self, draft: NgramDraft, text: Text, limit: int, topk: int, steps: int) -> None:
        """Grow `draft` to at most `limit` nodes with continuations of the text's suffixes, the longest suffix first.

        topk: maximum children of a node; steps: maximum depth.
        """
        for end in text.ends:
            if len(draft) >= limit:
                return
            grow = self._by_level if self.options.match_type == "BFS" else self._by_share
            grow(draft, end, limit, topk, steps)

    def _by_level(self, draft: NgramDraft, anchor: int, limit: int, topk: int, steps: int) -> None:
        level, matched = [(anchor, 0)], self.tree.end[anchor]
        while level:
            below: list[tuple[int, int]] = []
            for gram, node in level:
                for token, child, _ in self._first(self.tree.children(gram, matched), matched):
                    at = self._place(draft, node, token, limit, topk, steps)
                    if at is not None:
                        below.append((child, at))
            level, matched = below, matched + 1

    def _by_share(self, draft: NgramDraft, anchor: int, limit: int, topk: int, steps: int) -> None:
        """Best first: a node's score is the relative frequency of its path among all continuations of the anchor."""
        heap, order = [(-1.0, 0, -1, anchor, self.tree.end[anchor], 0)], 0
        while heap:
            score, _, token, gram, matched, node = heapq.heappop(heap)
            if token >= 0:
                at = self._place(draft, node, token, limit, topk, steps)
                if at is None:
                    continue
                node = at
            ranked = sorted(self.tree.children(gram, matched), key=lambda child: -child[2])
            shown = sum(count for _, _, count in ranked)
            for token, child, count in self._first(ranked, matched):
                order += 1
                heapq.heappush(heap, (score * count / shown, order, token, child, matched + 1, node))

    def _place(self, draft: NgramDraft, node: int, token: int, limit: int, topk: int, steps: int) -> int | None:
        """The child of a draft node, or None if the draft has no room for it."""
        siblings = draft.children[node]
        if token not in siblings and (len(draft) >= limit or len(siblings) >= topk or draft.depths[node] >= steps):
            return None
        return draft.add(node, token)

    def _first(self, children: Iterable[Child], matched: int) -> Iterator[Child]:
        """As many as the breadth allows after `matched` tokens: most after one token, fewest after a full window."""
        low, high = self.options.min_bfs_breadth, self.options.max_bfs_breadth
        span = max(1, self.options.max_trie_depth - 2)
        breadth = high - (high - low) * (matched - 1) // span
        return islice(children, max(0, breadth))
