"""Independent n-gram drafter, from its texts alone; shares no code with the engine's index.

Windows are strings with one character per token, so looking one up is a dictionary access with a slice.

Independent suffix decoding, from its texts alone; shares no code with the engine's trees.

Windows are strings with one character per token, so looking one up is a dictionary access with a slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Grams:
    """Tokens that followed each window, least recent first, with counts.

    options: `ngram` of a resolved configuration, named as in SGLang. Nothing is evicted, since no workload reaches the
    capacity; see `Forgetful`. windows: number of distinct (window, next token) pairs. corpus: documents that are
    searched first.
    """

    options: Mapping[str, Any]
    corpus: Sequence[str] = ()
    followers: dict[str, dict[str, int]] = field(default_factory=dict)
    windows: int = 0
    matched: bool = False

    def show(self, text: str, begin: int) -> None:
        """Insert the tokens of `text` from index `begin`."""
        for end in range(begin, len(text)):
            for start in range(max(0, end + 1 - self.options["max_trie_depth"]), end + 1):
                after = self.followers.setdefault(text[start:end], {})
                times = after.pop(text[end], 0)
                after[text[end]] = times + 1
                self.windows += not times

    def draft(self, text: str, nodes: int, topk: int, steps: int) -> KeysView[str]:
        """All paths below the last token of `text` in a draft tree of `nodes` nodes, root included, in their order;
        sets `matched` to whether any of them is not padding."""
        tree = _Tree(nodes, topk, steps)
        budget = min(self.options["external_sam_budget"], steps, nodes - 1)
        continuation = self.from_corpus(text, budget) if self.corpus else ""
        for end in range(len(continuation)):
            tree.takes(continuation[: end + 1])
        longest = min(len(text), self.options["max_trie_depth"])
        for length in range(longest, 0, -1):
            if len(tree.children) >= nodes:
                break
            grow = self._by_level if self.options["match_type"] == "BFS" else self._by_share
            grow(tree, text[-length:])
        self.matched = len(tree.children) > 1
        tree.pad()
        return tree.children.keys()

    def from_corpus(self, text: str, budget: int) -> str:
        """The corpus's most frequent continuation of the longest suffix of `text` that occurs in it, up to `budget`
        tokens; the smallest token breaks ties."""
        length = 0
        while length < len(text) and any(text[-length - 1 :] in document for document in self.corpus):
            length += 1
        known, continuation = text[len(text) - length :], ""
        while known and len(continuation) < budget:
            after = Counter(token for document in self.corpus for token in _behind(known + continuation, document))
            if not after:
                break
            continuation += min(after, key=lambda token: (-after[token], token))
        return continuation

    def _by_level(self, tree: _Tree, anchor: str) -> None:
        level = [""]
        while level:
            grown = [path + token for path in level for token in self._next(anchor + path)]
            level = [path for path in grown if tree.takes(path)]

    def _by_share(self, tree: _Tree, anchor: str) -> None:
        """Add paths that followed the anchor, most probable first; the one found first breaks ties."""
        found = {"": (1.0, 0)}
        order = 0
        while found:
            path = min(found, key=lambda path: (-found[path][0], found[path][1]))
            score, _ = found.pop(path)
            if path and not tree.takes(path):
                continue
            shown = sum(self.followers.get(anchor + path, {}).values())
            for token in self._next(anchor + path):
                order += 1
                found[path + token] = (score * self.followers[anchor + path][token] / shown, order)

    def _next(self, window: str) -> Sequence[str]:
        """Candidate next tokens, most recent or most frequent first; shorter windows give more of them."""
        after = list(reversed(self.followers.get(window, {})))
        if self.options["match_type"] != "BFS":
            after.sort(key=lambda token: -self.followers[window][token])
        low, high = self.options["min_bfs_breadth"], self.options["max_bfs_breadth"]
        span = max(1, self.options["max_trie_depth"] - 2)
        return after[: high - (high - low) * (len(window) - 1) // span]


@dataclass(slots=True)
class Forgetful:
    """Grams within a capacity, of windows as of tokens: beyond it the oldest text is one that began a token later, and
    what followed a window stays in its order.

    left: what is known of each text, by number, the oldest first.
    """

    grams: Grams
    left: dict[int, str] = field(default_factory=dict)

    def show(self, number: int, token: str) -> None:
        """Add a token to a text."""
        text = self.left[number] = self.left.get(number, "") + token
        self.grams.show(text, len(text) - 1)
        while max(self.grams.windows, sum(map(len, self.left.values()))) > self.grams.options["capacity"]:
            oldest, text = next(iter(self.left.items()))
            for end, token in enumerate(text[: self.grams.options["max_trie_depth"]]):
                after = self.grams.followers[text[:end]]
                after[token] -= 1
                if not after[token]:
                    del after[token]
                    self.grams.windows -= 1
            self.left[oldest] = text[1:]
            if not text[1:]:
                del self.left[oldest]


def _behind(window: str, document: str) -> Iterator[str]:
    """The token after each occurrence of the window."""
    at = document.find(window)
    while 0 <= at < len(document) - len(window):
        yield document[at + len(window)]
        at = document.find(window, at + 1)


class _Tree:
    """Paths below a root, each a string."""

    def __init__(self, nodes: int, topk: int, steps: int) -> None:
        self.nodes, self.topk, self.steps = nodes, topk, steps
        self.children: dict[str, int] = {"": 0}  # path to its number of children

    def takes(self, path: str) -> bool:
        """Add the path as a node if its parent has room; True if it is a node."""
        if path in self.children:
            return True
        parent = path[:-1]
        if len(self.children) >= self.nodes or self.children[parent] >= self.topk or len(path) > self.steps:
            return False
        self.children[parent] += 1
        self.children[path] = 0
        return True

    def pad(self) -> None:
        """Fill up with the smallest tokens, below the nodes added first."""
        made = list(self.children)
        for place in made:
            token = 0
            while len(self.children) < self.nodes and self.children[place] < self.topk and len(place) < self.steps:
                path = place + chr(token)
                if path not in self.children:
                    self.takes(path)
                    made.append(path)
                token += 1


@dataclass(slots=True)
class Counted:
    """How often each window of some texts occurs, and the tokens that followed it, most frequent first.

    Equal counts have the order of ArcticInference's trees: a token that was the first of its count moves to the front
    of the next higher one, any other to its end; one that lost an occurrence moves to the front of the next lower one.
    """

    depth: int
    counts: Counter[str] = field(default_factory=Counter)
    followers: dict[str, list[str]] = field(default_factory=dict)

    def show(self, text: str, begin: int) -> None:
        """Count the windows that end at or after index `begin`."""
        for end in range(begin, len(text)):
            for start in range(max(0, end + 1 - self.depth), end + 1):
                window, token = text[start:end], text[end]
                after, before = self.followers.setdefault(window, []), self.counts[window + token]
                if not before:
                    after.append(token)
                else:
                    self._move(window, token, before if token != self._first(window, before) else before + 1)
                self.counts[window + token] += 1

    def hide(self, text: str) -> None:
        """Take out the windows of a text."""
        for start in range(len(text)):
            for end in range(start, min(len(text), start + self.depth)):
                window, token = text[start:end], text[end]
                self._move(window, token, self.counts[window + token] - 1)
                self.counts[window + token] -= 1
                if not self.counts[window + token]:
                    self.followers[window].remove(token)

    def draft(self, text: str, options: Mapping[str, Any], room: int) -> tuple[str, float]:
        """The continuation of the last tokens of `text` with the highest sum of probabilities, and that sum."""
        best, most = "", 0.0
        for matched in range(1, min(len(text), self.depth)):
            window = text[-matched:]
            if not self.counts[window]:
                break
            limit = min(room, int(matched * options["max_spec_factor"] + options["max_spec_offset"] + 1e-6))
            path, probability, total = "", 1.0, 0.0
            while len(path) < limit and (after := self.followers.get(window + path)):
                probability *= self.counts[window + path + after[0]] / self.counts[window + path]
                if probability < options["min_token_prob"]:
                    break
                path, total = path + after[0], total + probability
            if total >= most:
                best, most = path, total
        return best, most

    def _first(self, window: str, count: int) -> str | None:
        """The first of the tokens with this count."""
        return next((token for token in self.followers[window] if self.counts[window + token] == count), None)

    def _move(self, window: str, token: str, count: int) -> None:
        """Put a token before the first one with this count or, if that is lower than its own, with a lower count yet.
        It stays where it is if there is none."""
        after, own = self.followers[window], self.counts[window + token]
        others = [other for other in after if other != token]
        ahead = [self.counts[window + other] > count for other in others]
        if count > own and self._first(window, count) is None:
            return
        self.followers[window] = [*others[: sum(ahead)], token, *others[sum(ahead) :]]


@dataclass(slots=True)
class Suffixes:
    """The drafts of an engine: from each running request's own text and from the outputs of the latest ones.

    options: `suffix` of a resolved configuration, named as in vLLM. rows: the most running requests.
    """

    options: Mapping[str, Any]
    rows: int
    own: dict[int, tuple[Counted, str]] = field(default_factory=dict)  # least recently drafted for first
    outputs: dict[int, str] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # index of the first token of an output that is read
    shared: Counted = field(init=False)

    def __post_init__(self) -> None:
        self.shared = Counted(self.options["max_tree_depth"])

    def draft(self, key: int, text: str, prompt: int, room: int) -> str:
        """Learn what is new in a request's text, whose first `prompt` tokens are its prompt, and draft after it."""
        if key not in self.own and key not in self.outputs:
            if self.options["max_cached_requests"]:
                self.outputs[key] = ""
            if len(self.outputs) > self.options["max_cached_requests"]:
                self._hide(next(iter(self.outputs)))
        mine, known = self.own.pop(key, (Counted(self.options["max_tree_depth"]), ""))
        read = text[:prompt] + text[max(prompt, self.begun.get(key, 0)) :]
        mine.show(read, len(known))
        self.own[key] = mine, read
        if len(self.own) > self.rows:
            del self.own[next(iter(self.own))]
        if key in self.outputs:
            known = self.outputs[key]
            self.outputs[key] = read[prompt:]
            self.shared.show(self.outputs[key], len(known))
        best, most = mine.draft(text, self.options, room)
        theirs, more = self.shared.draft(text, self.options, room)
        return best if most >= more else theirs

    def forget(self, key: int, known: int) -> None:
        """Forget a request, and its text up to `known`, apart from its prompt."""
        self.own.pop(key, None)
        self._hide(key)
        self.begun[key] = known

    def _hide(self, key: int) -> None:
        if key in self.outputs:
            self.shared.hide(self.outputs.pop(key))
