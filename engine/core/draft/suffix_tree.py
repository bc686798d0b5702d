"""Suffix decoding (arXiv 2411.04975): counting suffix trees, and the most likely continuation of a text's last tokens.

Pure: no clock, no randomness. Ties are those of ArcticInference's trees, which vLLM drafts with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

# Room for products such as 3 * 0.1 / 0.1 that are a whole number but for their last bit.
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """Options of suffix decoding, under vLLM's names.

    max_tree_depth: tokens per path, match and draft together. max_cached_requests: requests whose outputs are in the
    tree of all requests; 0: there is none. After a match of m tokens at most m * max_spec_factor + max_spec_offset
    tokens are drafted, and none once the product of their shares is below min_token_prob.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1


class SuffixNode:
    """One path from the root. count: how often it occurs. rank: its order among siblings of the same count."""

    __slots__ = ("children", "count", "rank")

    def __init__(self, rank: int) -> None:
        self.count, self.rank = 0, rank
        self.children: dict[int, SuffixNode] = {}

    @property
    def next(self) -> tuple[int, SuffixNode]:
        """The child with the highest count, and of several the first by rank, as (token, child)."""
        return min(self.children.items(), key=lambda item: (-item[1].count, item[1].rank))


@dataclass(frozen=True, slots=True)
class SuffixDraft:
    """Drafted tokens, and the sum of their probabilities."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0


class SuffixTree:
    """All substrings of up to `depth` tokens of some texts, with counts."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = SuffixNode(0)
        self._ranks = 0

    def add(self, ends: Sequence[SuffixNode], token: int) -> list[SuffixNode]:
        """Append a token to a text. ends: the nodes of its suffixes, longest first; returns those after the token."""
        return [self._counted(node, token) for node in (*ends, self.root)[-self.depth :]]

    def remove(self, text: Sequence[int]) -> None:
        """Take a text out, as if only the others had been added; the order of equal counts stays what it became."""
        for start in range(len(text)):
            node = self.root
            for token in text[start : start + self.depth]:
                child = node.children[token]
                child.count -= 1
                if not child.count:
                    del node.children[token]
                    break
                self._ranks += 1
                child.rank = -self._ranks
                node = child

    def draft(self, context: Sequence[int], options: SuffixOptions, room: int) -> SuffixDraft:
        """The draft with the highest score among those after each suffix of `context`, of up to `room` tokens; the
        longer match breaks ties. The whole context is no match, and only its last `depth` tokens count."""
        best = SuffixDraft()
        context = context[-self.depth :]
        for matched in range(1, len(context)):
            node: SuffixNode | None = self.root
            for token in context[-matched:]:
                node = node.children.get(token) if node is not None else None
            if node is None:
                break
            limit = int(matched * options.max_spec_factor + options.max_spec_offset + ROUNDING)
            found = tuple(_likely(node, options.min_token_prob, min(room, limit)))
            score = 0.0
            for _, probability in found:  # one by one: `sum` rounds less from Python 3.12 on, which decides ties
                score += probability
            if score >= best.score:
                best = SuffixDraft(tuple(token for token, _ in found), score)
        return best

    def _counted(self, node: SuffixNode, token: int) -> SuffixNode:
        """The child of a node, counted once more. It comes last among siblings of its new count, unless it was the
        first of its old one; then it comes first."""
        self._ranks += 1
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = SuffixNode(self._ranks)
        elif node is not self.root:  # whose children no draft chooses from
            equals = (other for other in node.children.values() if other.count == child.count)
            child.rank = -self._ranks if all(child.rank <= other.rank for other in equals) else self._ranks
        child.count += 1
        return child


def _likely(node: SuffixNode, least: float, limit: int) -> Iterator[tuple[int, float]]:
    """Up to `limit` tokens, each the most frequent after the previous ones, with their probabilities."""
    probability = 1.0
    for _ in range(limit):
        if not node.children:
            return
        token, child = node.next
        probability *= child.count / node.count
        if probability < least:
            return
        yield token, probability
        node = child


@dataclass(slots=True)
class _Running:
    """A text that is being drafted for: its own tree, and the nodes of its suffixes in it."""

    tree: SuffixTree
    ends: list[SuffixNode] = field(default_factory=list)
    seen: int = 0


@dataclass(slots=True)
class _Cached:
    """A text's output in the tree of all requests, and the nodes of its suffixes there."""

    output: list[int] = field(default_factory=list)
    ends: list[SuffixNode] = field(default_factory=list)


class SuffixCache:
    """A tree per running text, of its prompt and output, and one of the outputs of the latest requests.

    rows: the most running texts; the one drafted for longest ago gives way, and is read again if it comes back.
    """

    def __init__(self, options: SuffixOptions, rows: int) -> None:
        self.options, self.rows = options, rows
        self.tree = SuffixTree(options.max_tree_depth)
        self._running: dict[int, _Running] = {}
        self._cached: dict[int, _Cached] = {}

    def draft(self, key: int, tokens: Sequence[int], prompt: int, room: int) -> tuple[int, ...]:
        """Learn the new tokens of a text, and draft up to `room` tokens after it from the tree that promises more,
        its own if both promise the same. key: the text's; tokens: all of it, the first `prompt` are its prompt."""
        self._learn(key, tokens, prompt)
        mine = self._running[key].tree.draft(tokens, self.options, room)
        ours = self.tree.draft(tokens, self.options, room)
        return (mine if mine.score >= ours.score else ours).tokens

    def _learn(self, key: int, tokens: Sequence[int], prompt: int) -> None:
        text = self._running.pop(key, None)
        if text is None:
            text = _Running(SuffixTree(self.options.max_tree_depth))
            self._forget(key)
            if self.options.max_cached_requests:
                self._cached[key] = _Cached()
                if len(self._cached) > self.options.max_cached_requests:
                    self._forget(next(iter(self._cached)))
        self._running[key] = text
        if len(self._running) > self.rows:
            del self._running[next(iter(self._running))]
        cached = self._cached.get(key)
        for place in range(text.seen, len(tokens)):
            text.ends = text.tree.add(text.ends, tokens[place])
            if cached is not None and place >= prompt:
                cached.ends = self.tree.add(cached.ends, tokens[place])
                cached.output.append(tokens[place])
        text.seen = len(tokens)

    def _forget(self, key: int) -> None:
        cached = self._cached.pop(key, None)
        if cached is not None:
            self.tree.remove(cached.output)
