"""An index of recent token windows, and drafts of what followed them. Pure: no clock, no randomness.

A trie holds every window of up to `max_trie_depth` tokens seen in any text; a node counts its window's occurrences. A
text keeps a cursor: the nodes of all its suffixes. Tokens that followed one of them earlier are drafted. When the trie
is full, the oldest leaf is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

ROOT_DEPTH: Final = 0


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """Options of an n-gram drafter, under SGLang's names.

    min_bfs_breadth, max_bfs_breadth: children of a drafted node, few after a long match and many after a short one.
    match_type: BFS takes the most recent first, level by level; PROB the most frequent first.
    max_trie_depth: tokens per window, match and draft together. capacity: maximum number of windows (trie nodes).
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


class NgramNode:
    """One window: the path from the trie's root to this node. `children` are ordered by most recent occurrence."""

    __slots__ = ("alive", "children", "count", "depth", "parent", "token")

    def __init__(self, parent: NgramNode | None, token: int) -> None:
        self.parent = parent
        self.token = token
        self.depth: int = ROOT_DEPTH if parent is None else parent.depth + 1
        self.count = 0
        self.children: dict[int, NgramNode] = {}
        self.alive = True


@dataclass(slots=True)
class Cursor:
    """A text's position in the index: the nodes of its suffixes, longest first, and its number of indexed tokens."""

    grams: list[NgramNode] = field(default_factory=list)
    seen: int = 0


class NgramIndex:
    """The windows of all texts of one engine."""

    def __init__(self, options: NgramOptions) -> None:
        self.options = options
        self.root = NgramNode(None, -1)
        self._by_age: dict[NgramNode, None] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def learn(self, cursor: Cursor, tokens: Sequence[int]) -> None:
        """Index the tokens of this cursor's text that were not indexed before. tokens: the whole text."""
        for token in tokens[cursor.seen :]:
            cursor.grams = [
                self._show(gram, token)
                for gram in (*cursor.grams, self.root)
                if gram.alive and gram.depth < self.options.max_trie_depth
            ]
            while len(self._by_age) > self.options.capacity:
                self._evict()
        cursor.seen = len(tokens)

    def extend(self, draft: NgramDraft, cursor: Cursor, limit: int, topk: int, steps: int) -> None:
        """Grow `draft` to at most `limit` nodes with continuations of the text's suffixes, the longest suffix first.

        topk: maximum children of a node; steps: maximum depth.
        """
        for gram in cursor.grams:
            if len(draft) >= limit:
                return
            if gram.alive and gram.children:
                grow = self._by_level if self.options.match_type == "BFS" else self._by_share
                grow(draft, gram, limit, topk, steps)

    def _by_level(self, draft: NgramDraft, anchor: NgramNode, limit: int, topk: int, steps: int) -> None:
        level = [(anchor, 0)]
        while level:
            below: list[tuple[NgramNode, int]] = []
            for gram, node in level:
                for child in self._first(reversed(gram.children.values()), gram.depth):
                    at = self._place(draft, node, child.token, limit, topk, steps)
                    if at is not None:
                        below.append((child, at))
            level = below

    def _by_share(self, draft: NgramDraft, anchor: NgramNode, limit: int, topk: int, steps: int) -> None:
        """Best first: a node's score is the relative frequency of its path among all continuations of the anchor."""
        heap: list[tuple[float, int, NgramNode, int]] = [(-1.0, 0, anchor, 0)]
        order = 0
        while heap:
            score, _, gram, node = heapq.heappop(heap)
            if gram is not anchor:
                at = self._place(draft, node, gram.token, limit, topk, steps)
                if at is None:
                    continue
                node = at
            shown = sum(child.count for child in gram.children.values())
            ranked = sorted(gram.children.values(), key=lambda child: child.count)
            for child in self._first(reversed(ranked), gram.depth):
                order += 1
                heapq.heappush(heap, (score * child.count / shown, order, child, node))

    def _place(self, draft: NgramDraft, node: int, token: int, limit: int, topk: int, steps: int) -> int | None:
        """The child of a draft node, or None if the draft has no room for it."""
        siblings = draft.children[node]
        if token not in siblings and (len(draft) >= limit or len(siblings) >= topk or draft.depths[node] >= steps):
            return None
        return draft.add(node, token)

    def _first(self, grams: Iterable[NgramNode], matched: int) -> Iterator[NgramNode]:
        """As many as the breadth allows after `matched` tokens: most after one token, fewest after a full window."""
        low, high = self.options.min_bfs_breadth, self.options.max_bfs_breadth
        span = max(1, self.options.max_trie_depth - 2)
        breadth = high - (high - low) * (matched - 1) // span
        return (gram for gram, _ in zip(grams, range(breadth), strict=False))

    def _show(self, gram: NgramNode, token: int) -> NgramNode:
        """The child of `gram` with this token, created if new; it becomes the most recent."""
        child = gram.children.pop(token, None) or NgramNode(gram, token)
        self._by_age.pop(child, None)
        gram.children[token] = child
        self._by_age[child] = None
        child.count += 1
        return child

    def _evict(self) -> None:
        """Evict the oldest leaf. An inner node counts as recent, because one of its children occurred later."""
        while True:
            oldest = next(iter(self._by_age))
            del self._by_age[oldest]
            if not oldest.children:
                break
            self._by_age[oldest] = None
        oldest.alive = False
        if oldest.parent is not None:
            oldest.parent.children.pop(oldest.token, None)
