"""Makes the rounds of a drafter accept chosen numbers of drafts; part of the conformance suite only.

Which drafts the target accepts follows from the text, so a drafter that breaks where all rows accept everything, or
where rows accept different numbers, might never meet such a round. Here the drafts of a round are replaced by tokens of
the known continuation and by a wrong one after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.spec.drafter import Drafter, DraftTree, VerifyResult
from specmatrix.matrix.oracles.ngram import Grams
from specmatrix.reports.wording import spans


class Drafted(NamedTuple):
    """What a drafter proposed in a round, before any replacement."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]


class ForcedCounts:
    """A drafter whose proposals are replaced so that each round of a request accepts a chosen number of drafts.

    texts: by prompt, the tokens of prompt and continuation. prompts: prompt by row of the relay, of the running
    requests. Every other round of a request accepts all drafts and none in turn, and the rounds between a number that
    differs between requests. grams: an independent n-gram index, in which drafts of a shared index must be found too.
    """

    def __init__(
        self,
        drafter: Drafter,
        texts: Mapping[tuple[int, ...], Sequence[int]],
        prompts: Callable[[], Mapping[int, tuple[int, ...]]],
        grams: Grams | None = None,
    ) -> None:
        self._drafter, self._texts, self._prompts, self._grams = drafter, texts, prompts, grams
        self._read: dict[int, int] = {}  # tokens of each text in the index
        self.wrong = ""  # the first raised error, or drafts that the index does not have
        self._order = {prompt: index for index, prompt in enumerate(texts)}
        self._rounds = [0] * len(texts)
        self.drafted: dict[tuple[int, int], Drafted] = {}  # by request and KV length
        self.accepted: set[tuple[int, ...]] = set()  # drafts by row, of each round
        self.deepest = 0  # drafts of the longest path of a round

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the drafter's attribute
        return getattr(self._drafter, name)

    def begin(self) -> dict[tuple[int, int], Drafted]:
        """Begin again with the first round of each request; returns what was drafted since the last call."""
        drafted, self.drafted, self._rounds = self.drafted, {}, [0] * len(self._texts)
        return drafted

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        return self._drafter.prime(batch, tokens, aux, sampled, following)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        tree = self._drafter.propose(batch, relay)
        if tree.tokens.shape[1] == 1:
            return tree
        prompts, rows = self._prompts(), []
        if self._grams is not None and not self.wrong:
            self.wrong = next(self._strays(self._grams, batch, tree), "")
        for row, start, tokens, parents in zip(
            batch.rows.tolist(), batch.start.tolist(), tree.tokens.tolist(), tree.parents.tolist(), strict=True
        ):
            index, text = self._order[prompts[row]], self._texts[prompts[row]]
            self.drafted[index, start] = Drafted(tuple(tokens), tuple(parents))
            path = longest_path(parents)
            self.deepest = max(self.deepest, len(path))
            rows.append(forced(tokens, parents, path, text[start + 1 :], self._wanted(index, len(path))))
            self._rounds[index] += 1
        return tree._replace(tokens=torch.tensor(rows, device=tree.tokens.device))

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState | None:
        self.accepted.add(tuple(count - 1 for count in verdict.count.tolist()))
        try:
            return self._drafter.absorb(batch, verdict, aux)
        except Exception as error:  # a built-in drafter's step runs again, each request alone
            self.wrong = self.wrong or f"the drafter raised {type(error).__name__} in absorb ({error})"
            raise

    def _strays(self, grams: Grams, batch: StepBatch, tree: DraftTree) -> Iterator[str]:
        """A message for each row whose drafts differ from those of the index, which reads all rows' tokens first."""
        texts = ["".join(map(chr, known.tokens)) for known in batch.known]
        for known, text in zip(batch.known, texts, strict=True):
            grams.show(text, self._read.get(known.key, 0))
            self._read[known.key] = len(text)
        for text, tokens, parents in zip(texts, tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            paths = [""]
            for token, parent in zip(tokens[1:], parents[1:], strict=True):
                paths.append(paths[parent] + chr(token))
            due = grams.draft(text, len(tokens), self._drafter.topk, self._drafter.steps)
            if {*paths} != {*due}:
                yield f"the drafts {tokens[1:]} at position {len(text) - 1} are not an independent n-gram index's"

    def _wanted(self, index: int, depth: int) -> int:
        turn, between = divmod(self._rounds[index], 2)
        if between:
            return (len(self._order) * turn + index) % (depth + 1)
        return 0 if turn % 2 else depth

    def unforced(self) -> Iterable[str]:
        """A message for each kind of round that did not occur among rounds of several requests."""
        several = [counts for counts in self.accepted if len(counts) > 1]
        mixed = {count for counts in several if len({*counts}) > 1 for count in counts}
        if missing := sorted({*range(self.deepest + 1)} - mixed):
            yield f"the suite saw no round of different rows in which one accepted {spans(missing)} drafts"
        for same in (self.deepest, 0):
            if not any({*counts} == {same} for counts in several):
                yield f"the suite saw no round in which all rows accepted {same} drafts"


def longest_path(parents: Sequence[int]) -> list[int]:
    """The nodes of the longest path behind the root, the first one of several."""
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depths[node] = depths[parent] + 1
    node, path = depths.index(max(depths)), list[int]()
    while node:
        path.insert(0, node)
        node = parents[node]
    return path


def forced(
    tokens: Sequence[int], parents: Sequence[int], path: Sequence[int], text: Sequence[int], wanted: int
) -> list[int]:
    """A tree's tokens, changed so that exactly `wanted` drafts along `path` are accepted: they equal the text after the
    root, and no child of the last one equals the next token. Siblings stay distinct."""
    found, node = list(tokens), 0
    for depth, right in enumerate(text[: wanted + 1]):
        children = [child for child, parent in enumerate(parents) if parent == node and child]
        used = {right, *(found[child] for child in children)}
        for child in children:
            if found[child] == right:
                found[child] = next(token for token in range(len(used) + 1) if token not in used)
        if depth < wanted:
            node = path[depth]
            found[node] = right
    return found


def first_difference(
    together: Mapping[tuple[int, int], Drafted], alone: Mapping[tuple[int, int], Drafted], chains: bool
) -> tuple[int, int] | None:
    """Request and KV length of the first round whose drafts depend on the batch; None if none do. chains: that may
    differ in length."""
    for at in sorted(together.keys() & alone.keys()):
        mine, other = together[at], alone[at]
        length = min(map(len, (mine.tokens, other.tokens))) if chains else None
        if mine.tokens[:length] != other.tokens[:length] or mine.parents[:length] != other.parents[:length]:
            return at
    return None
