"""Drafts without a model: continuations of the same last tokens in earlier texts of this engine or in a corpus.

Reads the host's tokens (trait reads_host), so every step is resolved before it proposes.

Suffix decoding: each row drafts as many tokens as its suffix trees find likely, and may draft none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from specmatrix.engine.core.draft.algorithms import Traits, max_depth
from specmatrix.engine.core.draft.ngram_index import NgramDraft, NgramIndex, NgramOptions
from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton
from specmatrix.engine.core.draft.suffix_tree import SuffixCache, SuffixOptions, Text
from specmatrix.engine.device.batch import HostTokens, StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.staging import integers
from specmatrix.engine.spec.drafter import DraftTree, StatelessDrafter, shared_chain
from specmatrix.kernels.tree_layout import tree_layout


@dataclass(slots=True)
class Reader:
    """A text in the index, and its match position in the corpus."""

    text: Text = field(default_factory=Text)
    state: int = 0


@dataclass(eq=False)
class NgramDrafter(StatelessDrafter):
    """Irregular trees, or chains for topk 1, padded to `nodes`. Keeps as many readers, one per text, as there are rows;
    an evicted text is read again from its first token.
    """

    traits: Traits
    options: NgramOptions
    steps: int
    topk: int
    nodes: int
    rows: int
    corpus: SuffixAutomaton | None = None

    def __post_init__(self) -> None:
        self.depth = max_depth(self.steps, self.nodes)
        self.index = NgramIndex(self.options)
        self.readers: dict[int, Reader] = {}

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        readers = [self._read(known) for known in batch.known]
        drafts = [self._draft(reader, batch.width) for reader in readers]
        device = batch.root.device
        tokens = integers([token for draft in drafts for token in draft.tokens[1:]], device)
        tokens = torch.cat((batch.root, tokens.view(len(drafts), -1)), 1)
        if self.topk == 1:
            return shared_chain(tokens)
        parents = integers([parent for draft in drafts for parent in draft.parents], device).view(len(drafts), -1)
        depths, ancestors = tree_layout(parents)
        return DraftTree(tokens, parents, depths, ancestors, self.depth)

    def forget(self, key: int) -> None:
        """Drop the reader of a text that has ended."""
        del self.readers[key]

    def _read(self, known: HostTokens) -> Reader:
        """A text's reader, advanced to its last token; evicts the least recently used reader if necessary."""
        reader = self.readers.pop(known.key, None) or Reader()
        self.readers[known.key] = reader
        if len(self.readers) > self.rows:
            self.forget(next(iter(self.readers)))
        if self.corpus is not None:
            for token in known.tokens[len(reader.text.tokens) :]:
                reader.state = self.corpus.step(reader.state, token)
        self.index.learn(reader.text, known.tokens)
        return reader

    def _draft(self, reader: Reader, width: int) -> NgramDraft:
        """Drafts from the corpus within its budget, then from the index, then padding."""
        draft, node = NgramDraft(), 0
        if self.corpus is not None:
            budget = min(self.options.external_sam_budget, self.steps, width - 1)
            for token in self.corpus.follow(reader.state, budget):
                node = draft.add(node, token)
        self.index.extend(draft, reader.text, width, self.topk, self.steps)
        draft.pad(width, self.topk, self.steps)
        return draft


@dataclass(eq=False)
class SuffixDrafter(StatelessDrafter):
    """Chains of up to `steps` drafts, padded to the longest of the round; `rows`: the most running requests."""

    traits: Traits
    options: SuffixOptions
    steps: int
    rows: int
    topk = 1

    def __post_init__(self) -> None:
        self.nodes = self.steps + 1
        self.cache = SuffixCache(self.options, self.rows)
        self.readers, self.forget = self.cache.readers, self.cache.forget

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        # The whole draft decides which of several is best, so that a row's drafts do not depend on its room.
        drafts = [self.cache.draft(*text, self.steps)[: nodes - 1] for *text, nodes in batch.known]
        batch.narrow(width := 1 + max(map(len, drafts)))
        device = batch.root.device
        padded = [token for draft in drafts for token in (0, *draft, *[0] * (width - 1 - len(draft)))]
        tokens = torch.cat((batch.root, integers(padded, device).view(len(drafts), width)[:, 1:]), 1)
        return shared_chain(tokens, None, integers([1 + len(draft) for draft in drafts], device))
