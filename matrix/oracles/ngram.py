"""What an n-gram drafter must propose, from its texts alone; shares no code with the engine's index.

Windows are strings with a character per token: whether one came before is a look-up of a slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Grams:
    """Which tokens followed which windows, in the order of their last showing.

    options: as in SGLang, under `ngram` of a resolved configuration. Nothing is ever forgotten: no workload reaches the
    capacity. windows: how many there are. corpus: documents that are asked first, each of a budget of nodes.
    """

    options: Mapping[str, Any]
    corpus: Sequence[str] = ()
    followers: dict[str, dict[str, int]] = field(default_factory=dict)
    windows: int = 0

    def show(self, text: str, begin: int) -> None:
        """Take in what `text` holds from its token `begin` on."""
        for end in range(begin, len(text)):
            for start in range(max(0, end + 1 - self.options["max_trie_depth"]), end + 1):
                after = self.followers.setdefault(text[start:end], {})
                times = after.pop(text[end], 0)
                after[text[end]] = times + 1
                self.windows += not times

    def draft(self, text: str, nodes: int, topk: int, steps: int) -> set[str]:
        """Every path below the last token of `text` in a draft of `nodes` nodes, root included."""
        tree = _Tree(nodes, topk, steps)
        said = self._quoted(text, min(self.options["external_sam_budget"], steps, nodes - 1)) if self.corpus else ""
        for end in range(1, len(said) + 1):
            tree.takes(said[:end])
        longest = min(len(text), self.options["max_trie_depth"])
        for length in range(longest, 0, -1):
            if len(tree.children) >= nodes:
                break
            grow = self._by_level if self.options["match_type"] == "BFS" else self._by_share
            grow(tree, text[-length:])
        tree.pad()
        return set(tree.children)

    def _quoted(self, text: str, budget: int) -> str:
        """What the corpus most often goes on with behind the longest end of `text` that stands in it; of equals the
        smallest token."""
        length = 0
        while length < len(text) and any(text[-length - 1 :] in document for document in self.corpus):
            length += 1
        known, said = text[len(text) - length :], ""
        while known and len(said) < budget:
            after = Counter(token for document in self.corpus for token in _behind(known + said, document))
            if not after:
                break
            said += min(after, key=lambda token: (-after[token], token))
        return said

    def _by_level(self, tree: _Tree, anchor: str) -> None:
        level = [""]
        while level:
            grown = [path + token for path in level for token in self._next(anchor + path)]
            level = [path for path in grown if tree.takes(path)]

    def _by_share(self, tree: _Tree, anchor: str) -> None:
        """The likeliest path among all that followed the anchor; of equals the one that was found first."""
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
        """What may follow: the most recent first, or the most frequent; the shorter the window, the more."""
        after = list(reversed(self.followers.get(window, {})))
        if self.options["match_type"] != "BFS":
            after.sort(key=lambda token: -self.followers[window][token])
        low, high = self.options["min_bfs_breadth"], self.options["max_bfs_breadth"]
        span = max(1, self.options["max_trie_depth"] - 2)
        return after[: high - (high - low) * (len(window) - 1) // span]


def _behind(window: str, document: str) -> Iterator[str]:
    """The token behind each place where the window stands."""
    at = document.find(window)
    while 0 <= at < len(document) - len(window):
        yield document[at + len(window)]
        at = document.find(window, at + 1)


class _Tree:
    """Paths below a root, each a string; siblings differ."""

    def __init__(self, nodes: int, topk: int, steps: int) -> None:
        self.nodes, self.topk, self.steps = nodes, topk, steps
        self.children: dict[str, int] = {"": 0}  # path to how many children it has

    def takes(self, path: str) -> bool:
        """Whether the path is a node, made if there is room for it below its parent."""
        if path in self.children:
            return True
        parent = path[:-1]
        if len(self.children) >= self.nodes or self.children[parent] >= self.topk or len(path) > self.steps:
            return False
        self.children[parent] += 1
        self.children[path] = 0
        return True

    def pad(self) -> None:
        """The smallest tokens, in the places made first."""
        made = list(self.children)
        for place in made:
            token = 0
            while len(self.children) < self.nodes and self.children[place] < self.topk and len(place) < self.steps:
                path = place + chr(token)
                if path not in self.children:
                    self.takes(path)
                    made.append(path)
                token += 1
