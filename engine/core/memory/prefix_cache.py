"""The prefix cache: a trie of whole pages over the cached pages of the ledger's first group. Where a state goes with
every few pages, a node is that many pages.

A node's key holds its own tokens and the next `key_span` tokens. A drafter that shifts its input by one token has draft
KV at slot p that depends on token p + 1, so it is reusable only if the token after it matches too (the bigram keys
of sglang#10846, at page granularity).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from specmatrix.engine.core.memory.ledger import Ledger


@dataclass(eq=False, slots=True)
class Node:
    """One cached page, or several that end at a checkpoint."""

    pages: tuple[int, ...]
    parent: Node | None
    key: tuple[int, ...]
    used: int = 0
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class PrefixCache:
    """Longest-prefix reuse of whole pages, with LRU eviction of leaves."""

    def __init__(self, ledger: Ledger, key_span: int, enabled: bool = True) -> None:
        self.ledger = ledger
        self.key_span = key_span
        self.enabled = enabled
        self.root = Node((), None, ())
        self.nodes: dict[int, Node] = {}  # by each of its pages
        self.duplicates = 0  # inserts that found another request's page with the same tokens
        self._clock = 0

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Cached pages that hold a prefix of `tokens`; at least one token always remains to be computed."""
        pages: list[int] = []
        if not self.enabled:
            return pages
        self._clock += 1
        node = self.root
        for index in range(self._whole(len(tokens) - 1, len(tokens))):
            child = node.children.get(self._key(tokens, index))
            if child is None:
                break
            child.used = self._clock
            pages.extend(child.pages)
            node = child
        return pages

    def insert(self, rid: int, tokens: Sequence[int]) -> int:
        """Transfer the account's whole pages to the cache, up to the first whose tokens are cached already.

        `tokens` are the known tokens of the request. Returns the number of transferred pages.
        """
        account = self.ledger.accounts[rid]
        own = account.groups[0]
        if not self.enabled:
            return 0
        self._clock += 1
        unit = self.ledger.unit
        node = self.nodes[own.pages[own.shared - 1]] if own.shared else self.root
        fresh: list[tuple[int, ...]] = []
        for index in range(own.shared // unit, self._whole(account.committed, len(tokens))):
            key = self._key(tokens, index)
            if not fresh and key in node.children:
                self.duplicates += 1
                break  # another request cached the same tokens first: this copy stays private
            fresh.append(key)
        given = self.ledger.donate(rid, unit * len(fresh)) if fresh else ()
        for index, key in enumerate(fresh):
            child = Node(given[index * unit : (index + 1) * unit], node, key, self._clock)
            node.children[key] = child
            self.nodes.update(dict.fromkeys(child.pages, child))
            node = child
        return len(given)

    def evict(self, count: int) -> int:
        """Free `count` unpinned pages, or all, least recently used leaves first. Returns how many were freed."""
        leaves = [(n.used, n.pages[0]) for page, n in self.nodes.items() if page == n.pages[0] and self._loose(n)]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < count:
            leaf = self.nodes[heapq.heappop(leaves)[1]]
            parent = self._drop(leaf)
            if parent is not self.root and self._loose(parent):
                heapq.heappush(leaves, (parent.used, parent.pages[0]))
            freed += len(leaf.pages)
        return freed

    def _loose(self, node: Node) -> bool:
        return not node.children and not self.ledger.groups[0].pins[node.pages[0]]

    def _drop(self, leaf: Node) -> Node:
        parent = leaf.parent
        assert parent is not None  # only the root, which has no page, has none
        del parent.children[leaf.key]
        for page in leaf.pages:
            del self.nodes[page]
        self.ledger.evict(*leaf.pages)
        return parent

    def _whole(self, positions: int, known: int) -> int:
        return max(0, min(positions, known - self.key_span)) // (self.ledger.unit * self.ledger.page_size)

    def _key(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        size = self.ledger.unit * self.ledger.page_size
        return tuple(tokens[index * size : (index + 1) * size + self.key_span])
