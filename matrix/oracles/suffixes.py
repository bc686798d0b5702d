"""Independent suffix decoding, from its texts alone; shares no code with the engine's trees.

Windows are strings with one character per token, so looking one up is a dictionary access with a slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
