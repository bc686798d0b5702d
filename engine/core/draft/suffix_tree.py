"""A counting suffix tree of bounded depth, from which n-gram and suffix decoding draft. Pure: no clock, no randomness.

Paths without branches are one node, whose label is a slice of a text, so a text has at most two nodes per token. Nodes
are numbers, their fields flat arrays: the garbage collector has nothing to walk.

Suffix decoding (arXiv 2411.04975): the most likely continuation of a text's last tokens, in the text itself and in
the outputs of the latest requests. Pure: no clock, no randomness.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Final, TypeAlias

# A node, and the number of tokens from the root, within its label; a slice of a text: its number, start and length.
Place: TypeAlias = tuple[int, int]
Slice: TypeAlias = tuple[int, int, int]
ROOT: Final = 0
# Bytes that a token takes in a tree at most, two nodes of eleven fields of four bytes, in arrays that grow by a
# sixteenth; and those that a text takes besides.
TOKEN_BYTES: Final = 100
TEXT_BYTES: Final = 600


class Text:
    """A text in a tree. tokens: int32, all of it. ends: the nodes where its suffixes end that occur elsewhere too,
    longest first. gone: how many of its suffixes are forgotten, the longest first. number: its age, as in `texts`."""

    __slots__ = ("ends", "gone", "number", "tokens")

    def __init__(self) -> None:
        self.tokens = array("i")
        self.ends = array("i")
        self.gone, self.number = 0, -1


class SuffixTree:
    """All substrings ("windows") of up to `depth` tokens of some texts, with counts.

    recent: children are ordered by their latest occurrence, the latest first; else by count, the highest first, where
    ties are those of ArcticInference's trees: a child that was the first of its count comes first of the next higher
    one, any other last, and one that lost an occurrence comes first of the next lower one.
    texts: by number, oldest first; only the oldest is forgotten, so that a label, a slice of the latest text that has
    it, always is one of a known text. A node that occurs once is a leaf, which grows with its text.
    """

    def __init__(self, depth: int, recent: bool = False) -> None:
        self.depth, self.recent = depth, recent
        self.texts: dict[int, Text] = {}
        self.windows = self.suffixes = self._begun = self._hashed = self._free = self._mask = 0
        # By node. token: the first of its label; text, at: where that is; end: tokens from the root to its end; up:
        # its parent; first: its first child; after, before: its siblings, the last being before the first.
        self.columns = tuple(array("i", [0]) for _ in range(10))
        self.token, self.count, self.text, self.at, self.end, *links = self.columns
        self.up, self.first, self.after, self.before, self._chain = links
        self.table = array("i", [0])  # first node by hash of parent and token; `_chain`: the next

    def add(self, text: Text, token: int) -> None:
        """Append a token to a text, which is a new one if all of it is forgotten."""
        if text.number not in self.texts:
            self._begun += 1
            text.number = self._begun
            self.texts[text.number] = text
        place, kept = len(text.tokens), array("i")
        text.tokens.append(token)
        self.suffixes += 1
        for node in (*text.ends, ROOT):
            if self.end[node] < self.depth and (node := self._advance(text, node, token, place)):
                kept.append(node)
        text.ends = kept
        self.windows += min(place + 1 - text.gone, self.depth) - len(kept)

    def forget(self) -> None:
        """Forget the longest suffix of the oldest text, as if the text began behind it, and the text with its last."""
        text = next(iter(self.texts.values()))
        tokens, place, node = text.tokens, text.gone, ROOT
        stop = min(len(tokens), place + self.depth)
        while place < stop:
            child = self._child(node, tokens[place])
            if self.count[child] == 1:
                self.windows -= self.reach(child) - self.end[node]
                self._unlink(child)
                self._drop(child)
                break
            self.count[child] -= 1
            self._fall(child)
            place += self.end[child] - self.end[node]
            node = child
        else:
            text.ends = array("i", [end for end in text.ends if end != node])
        child = self.first[node]
        if node and child and self.count[child] == self.count[node]:
            self._merge(node, child)
        elif node and self.count[node] == 1:  # a leaf again, of the text that is left
            owner = self.texts[self.text[node]]
            owner.ends = array("i", [end for end in owner.ends if end != node])
            self.end[node] = self.depth
        text.gone += 1
        self.suffixes -= 1
        if text.gone == len(tokens):
            del self.texts[text.number]

    def reach(self, node: int) -> int:
        """Tokens from the root to the end of a node, as far as its text goes."""
        return min(self.end[node], self.end[self.up[node]] + len(self.texts[self.text[node]].tokens) - self.at[node])

    def find(self, tokens: array[int]) -> Place | None:
        """The place of a window: its node, and its number of tokens. None if it does not occur."""
        node = place = 0
        while place < len(tokens):
            node = self._child(node, tokens[place])
            if not node:
                return None
            at, length = self.at[node], min(self.reach(node), len(tokens)) - place
            if self.texts[self.text[node]].tokens[at : at + length] != tokens[place : place + length]:
                return None
            place += length
        return node, place

    def children(self, node: int, place: int) -> Iterator[tuple[int, int, int]]:
        """What follows a place, in order: the token, its node, and how often it does."""
        if place < self.reach(node):
            tokens = self.texts[self.text[node]].tokens
            yield tokens[self.at[node] + place - self.end[self.up[node]]], node, self.count[node]
        else:
            child = self.first[node]
            while child:
                yield self.token[child], child, self.count[child]
                child = self.after[child]

    def likely(self, node: int, place: int, least: float, limit: int) -> tuple[float, list[Slice]]:
        """Up to `limit` tokens behind a place, each the first that follows, while their probability, the product of
        their shares, is at least `least`: the sum of the probabilities, and slices of texts."""
        probability, score, slices = 1.0, 0.0, list[Slice]()
        while limit:
            length = min(self.reach(node) - place, limit)
            if length:
                slices.append((self.text[node], self.at[node] + place - self.end[self.up[node]], length))
                for _ in range(length):  # one by one: a product rounds otherwise, which decides ties
                    score += probability
                limit -= length
                place += length
            child = self.first[node]
            if not child:
                break
            probability *= self.count[child] / self.count[node]
            if probability < least:
                break
            node = child
        return score, slices

    def _advance(self, text: Text, node: int, token: int, place: int) -> int:
        """Count a suffix that ended at a node once more, one token longer. The node where it ends now; 0 for a leaf."""
        child = self._child(node, token)
        if not child:
            leaf = self._new(token, 1, text.number, place, self.depth)
            self._link(leaf, node, self.first[node] if self.recent else 0)
            return 0
        end, at, owner = self.end[node] + 1, self.at[child] + 1, self.texts[self.text[child]]
        # Nobody else ends at the node or goes elsewhere from it, so the node itself becomes longer.
        moves = node != ROOT and self.count[node] == self.count[child] + 1
        spent = self.count[child] == 1 and at == len(owner.tokens)
        if spent and end < self.depth:  # nothing is left of the leaf, so its suffix ends at a node, too
            self.end[child] = end
            owner.ends.insert(sum(self.end[other] > end for other in owner.ends), child)
        if self.end[child] == end:
            self.count[child] += 1
            if moves:
                self._merge(node, child)
            else:
                self._rise(child)
            node = child
        else:
            if moves:
                self.end[node] = end
            else:
                node = self._new(token, self.count[child], self.text[child], at - 1, end)
                self._replace(child, node)
                self._link(child, node)
                self.count[node] += 1
                self._rise(node)
            self.at[child], self.token[child] = at, owner.tokens[at]
        if text.number >= self.text[node]:
            self.text[node], self.at[node] = text.number, place + 1 - end + self.end[self.up[node]]
        return node

    def _merge(self, node: int, child: int) -> None:
        """Put an only child in the place of its parent."""
        self.at[child] -= self.end[node] - self.end[self.up[node]]
        self.token[child] = self.token[node]
        self._replace(node, child)
        self._drop(node)

    def _rise(self, child: int) -> None:
        """Order a child that is counted once more."""
        up, first = self.up[child], self.first[self.up[child]]
        if child == first or up == ROOT:  # nothing is drafted behind the root
            return
        place = first
        if not self.recent:
            place = self.before[child]
            level = self.count[place]
            if level > self.count[child]:
                return
            while place != first and self.count[self.before[place]] == level:
                place = self.before[place]
        self._take(child)
        self._put(child, up, place)

    def _fall(self, child: int) -> None:
        """Order a child that is counted once less."""
        place = self.after[child]
        if self.recent or self.up[child] == ROOT or not place or self.count[place] <= self.count[child]:
            return
        while place and self.count[place] > self.count[child]:
            place = self.after[place]
        self._take(child)
        self._put(child, self.up[child], place)

    def _put(self, child: int, up: int, place: int) -> None:
        """Make a node a child, before the child `place`, or the last one for 0."""
        first = self.first[up]
        self.up[child], self.after[child], self.before[child] = up, place, child
        if first:
            self.before[child] = last = self.before[place or first]
            self.before[place or first] = child
            if place != first:
                self.after[last] = child
        if place == first:
            self.first[up] = child

    def _take(self, child: int) -> None:
        """Take a node out of its parent's children."""
        up, after, before = self.up[child], self.after[child], self.before[child]
        if self.first[up] == child:
            self.first[up] = after
        else:
            self.after[before] = after
        if after or self.first[up]:
            self.before[after or self.first[up]] = before

    def _replace(self, old: int, new: int) -> None:
        """Put a node in the place of another among its siblings."""
        self._link(new, self.up[old], old)
        self._unlink(old)

    def _link(self, child: int, up: int, place: int = 0) -> None:
        """As `_put`, so that it is found by its token, too."""
        first = self.first[up]
        alone = self.before[first] == first
        self._put(child, up, place)
        if first:
            if alone:
                self._hash(first)
            self._hash(child)

    def _unlink(self, child: int) -> None:
        up = self.up[child]
        if self.before[child] != child:
            self._unhash(child)
        self._take(child)
        left = self.first[up]
        if left and self.before[left] == left:
            self._unhash(left)

    def _child(self, node: int, token: int) -> int:
        """The child of a node whose label begins with a token, or 0. Only children with siblings are hashed."""
        child = self.first[node]
        if child and self.token[child] != token:
            child = 0 if self.before[child] == child else self.table[self._bucket(node, token)]
            while child and (self.token[child] != token or self.up[child] != node):
                child = self._chain[child]
        return child

    def _bucket(self, node: int, token: int) -> int:
        bucket = (node * 40503 + token) & self._mask
        return bucket if bucket < len(self.table) else bucket & self._mask >> 1

    def _hash(self, child: int) -> None:
        bucket = self._bucket(self.up[child], self.token[child])
        self._chain[child] = self.table[bucket]
        self.table[bucket] = child
        self._hashed += 1
        size = len(self.table)
        if self._hashed > size:  # one bucket more (linear hashing, Litwin 1980), so that no token waits for all
            self.table.append(0)
            if size > self._mask:
                self._mask = 2 * self._mask + 1
            bucket = size & self._mask >> 1
            child, self.table[bucket] = self.table[bucket], 0
            while child:
                bucket = self._bucket(self.up[child], self.token[child])
                after, self._chain[child] = self._chain[child], self.table[bucket]
                self.table[bucket], child = child, after

    def _unhash(self, child: int) -> None:
        bucket = self._bucket(self.up[child], self.token[child])
        other = self.table[bucket]
        if other == child:
            self.table[bucket] = self._chain[child]
        while other and self._chain[other] != child:
            other = self._chain[other]
        if other:
            self._chain[other] = self._chain[child]
        self._hashed -= 1

    def _new(self, *label: int) -> int:
        """A node without a parent: its first token, count, text, start and end."""
        node = self._free
        if node:
            self._free = self.after[node]
        else:
            node = len(self.token)
            for each in self.columns:
                each.append(0)
        for each, value in zip(self.columns, label, strict=False):
            each[node] = value
        self.first[node] = 0
        return node

    def _drop(self, node: int) -> None:
        self.after[node], self._free = self._free, node


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
