"""Suffix decoding (arXiv 2411.04975): the most likely continuation of a text's last tokens, in the text itself and in
the outputs of the latest requests. Pure: no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Final

from specmatrix.engine.core.draft.suffix_tree import TEXT_BYTES, TOKEN_BYTES, Place, Slice, SuffixTree, Text

# Room for products such as 3 * 0.1 / 0.1 that are a whole number but for their last bit.
ROUNDING: Final = 1e-6
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """Options of suffix decoding, under vLLM's names.

    max_tree_depth: tokens per path, match and draft together. max_cached_requests: requests whose outputs are in the
    tree of all requests; 0: there is none. After a match of m tokens at most m * max_spec_factor + max_spec_offset
    tokens are drafted, and none once the product of their shares is below min_token_prob. max_gb (not in vLLM): GiB of
    all trees.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    max_gb: float = 1.0

    @property
    def longest(self) -> int:
        """Tokens of the longest draft: those that a match allows, within the path behind it."""
        return max(1, *(min(self.limit(size), self.max_tree_depth - size) for size in range(1, self.max_tree_depth)))

    def limit(self, matched: int) -> int:
        """Most tokens drafted after a match of so many."""
        return int(matched * self.max_spec_factor + self.max_spec_offset + ROUNDING)


class SuffixCache:
    """A tree per running text, of its prompt and output, and one of the outputs of the latest requests.

    rows: the most running texts; the one drafted for longest ago gives way, and is read again if it comes back. Bytes
    are budgeted before they are used: the oldest outputs give way first, then the texts drafted for longest ago.
    """

    def __init__(self, options: SuffixOptions, rows: int) -> None:
        self.options, self.rows = options, rows
        self.tree = SuffixTree(options.max_tree_depth)
        self.outputs: dict[int, Text] = {}
        self.readers: dict[int, tuple[SuffixTree, Text]] = {}
        self._read = 0  # tokens of `readers`

    @property
    def size(self) -> int:
        """Bytes that the trees may take."""
        tokens, texts = self._read + self.tree.suffixes, len(self.readers) + len(self.outputs)
        return tokens * TOKEN_BYTES + texts * TEXT_BYTES

    def draft(self, key: int, tokens: Sequence[int], prompt: int, room: int) -> tuple[int, ...]:
        """Learn the new tokens of a text, and draft up to `room` tokens after it from the tree that promises more,
        its own if both promise the same. key: the text's; tokens: all of it, the first `prompt` are its prompt."""
        tree, text = self._learn(key, tokens, prompt)
        own, score = self._best(tree, self._places(tree, text.ends), room, 0.0)
        others, _ = self._best(self.tree, self._shared(text, self.outputs.get(key)), room, score)
        return others or own

    def forget(self, key: int) -> None:
        """Drop the tree of a text that has ended; its output stays."""
        self._read -= len(self.readers.pop(key)[1].tokens)

    def _best(
        self, tree: SuffixTree, places: Iterable[Place], room: int, least: float
    ) -> tuple[tuple[int, ...], float]:
        """The draft with the highest score, the sum of its probabilities, behind places of a tree, the longest first,
        which breaks ties; () if no score is above `least`."""
        options, found = self.options, list[Slice]()
        for node, matched in places:
            limit = options.limit(matched)
            if min(room, limit, tree.depth - matched) > least:
                score, slices = tree.likely(node, matched, options.min_token_prob, min(room, limit))
                if score > least:
                    least, found = score, slices
        return tuple(chain.from_iterable(tree.texts[text].tokens[at : at + size] for text, at, size in found)), least

    def _places(self, tree: SuffixTree, ends: Iterable[int]) -> Iterator[Place]:
        return ((node, tree.end[node]) for node in ends)

    def _shared(self, text: Text, output: Text | None) -> Iterator[Place]:
        """The places of a text's suffixes in the tree of all requests, the longest first: those within its output are
        known, longer ones are looked up."""
        ends, known = ((), 0) if output is None else (output.ends, len(output.tokens))
        longer: list[Place] = []
        if not known or (ends and self.tree.end[ends[0]] == known):
            sizes = range(known + 1, min(len(text.tokens), self.tree.depth))
            looked = (self.tree.find(text.tokens[-size:]) for size in sizes)
            longer = [place for place in takewhile(bool, looked) if place]
        return chain(reversed(longer), self._places(self.tree, ends))

    def _learn(self, key: int, tokens: Sequence[int], prompt: int) -> tuple[SuffixTree, Text]:
        found = self.readers.pop(key, None)
        tree, text = found or (SuffixTree(self.options.max_tree_depth), Text())
        output = self.outputs.get(key)
        if not text.tokens and output is None and self.options.max_cached_requests:
            output = self.outputs[key] = Text()
        self.readers[key] = tree, text
        known = prompt + (len(tokens) if output is None else len(output.tokens))
        more = len(tokens) - len(text.tokens) + max(0, len(tokens) - known)
        self._make_room(more * TOKEN_BYTES)
        self._read += len(tokens) - len(text.tokens)
        for token in tokens[len(text.tokens) :]:
            tree.add(text, token)
        for token in tokens[known:] if key in self.outputs else ():
            self.tree.add(self.outputs[key], token)
        return tree, text

    def _make_room(self, more: int) -> None:
        """Forget what is oldest, unless `more` bytes fit in."""
        budget = self.options.max_gb * GIB - more
        while len(self.outputs) > self.options.max_cached_requests or (self.outputs and self.size > budget):
            output = self.outputs.pop(next(iter(self.outputs)))
            while output.number in self.tree.texts:
                self.tree.forget()
        while len(self.readers) > self.rows or (len(self.readers) > 1 and self.size > budget):
            self.forget(next(iter(self.readers)))
