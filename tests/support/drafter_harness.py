"""A drafter that decides how many drafts are right, so that a test with random weights meets every accepted length. The
real drafter's proposal is recorded; the verified tree has the truth along one path of the same tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.spec.drafter import DraftTree


class Proposal(NamedTuple):
    """What was proposed for one request at KV length `start`, root first, and how many drafts were made right."""

    start: int
    tokens: list[int]
    parents: list[int]
    right: int


@dataclass
class Puppet:
    """Wraps a drafter: 0 right drafts in a request's first round, 1 in its second, and so on cyclically. truth: request
    id -> its true tokens, longer than it will run."""

    inner: Any
    llm: LLM
    truth: dict[int, list[int]] = field(default_factory=dict)
    seen: dict[int, list[Proposal]] = field(default_factory=dict)

    def right(self, number: int, depth: int) -> int:
        """How many drafts of a request's round are right."""
        return number % (depth + 1)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        tree = self.inner.propose(batch, relay)
        owner = {self.llm.request(rid).row: rid for rid in self.truth}
        tokens = tree.tokens.clone()
        for b, row in enumerate(batch.rows.tolist()):
            if row not in owner:
                continue
            truth, start, parents = self.truth[owner[row]], int(batch.start[b]), tree.parents[b].tolist()
            seen = self.seen.setdefault(owner[row], [])
            path = last_children(parents)[: self.right(len(seen), tree.depth) + 1]
            seen.append(Proposal(start, tree.tokens[b].tolist(), parents, len(path) - 1))
            for node in range(1, len(parents)):
                right = truth[start + int(tree.depths[b, node])]
                tokens[b, node] = right if node in path else (right + 1) % self.llm.vocab_size
        return tree._replace(tokens=tokens)


def last_children(parents: list[int]) -> list[int]:
    """From the root to its last child, on to that one's last child, and so on: a path that must be compacted."""
    path = [0]
    while path[-1] in parents:
        path.append(len(parents) - 1 - parents[::-1].index(path[-1]))
    return path


def run(llm: LLM, prompts: list[list[int]], truths: list[list[int]], new: int) -> list[list[Proposal]]:
    """Each prompt's proposals while the engine runs `new` greedy tokens; rounds past the end are left out."""
    inner = llm.loop.executor.drafter
    puppet = Puppet(inner, llm)
    # The puppet reads tensors on the host, which a guard forbids, so it takes the guard's place.
    plain = llm.loop.executor.plain
    hooks, plain.drafter = plain.drafter, puppet
    rids = [llm.add(prompt, SamplingParams(max_new_tokens=new, ignore_eos=True)) for prompt in prompts]
    puppet.truth = dict(zip(rids, truths, strict=True))
    while llm.step():
        pass
    plain.drafter = hooks
    for rid, truth in puppet.truth.items():
        said = list(llm.request(rid).tokens)
        assert said == truth[: len(said)], "greedy text is the target's, whatever is drafted"
    return [[p for p in puppet.seen[rid] if p.start < len(llm.request(rid).tokens) - 1] for rid in rids]


class Whole(Protocol):
    """A draft that runs over a whole sequence."""

    def run(self, tokens: Tensor, states: list[Tensor]) -> Tensor: ...

    def logits(self, out: Tensor) -> Tensor: ...


class Drafting:
    """A draft by its whole-sequence formula: autoregressive, or with a mask token and its state in parallel."""

    def __init__(
        self, model: Whole, tokens: list[int], states: Tensor, masks: tuple[int, Tensor] | None = None
    ) -> None:
        self.model, self.tokens, self.states, self.masks = model, tokens, states, masks

    def after(self, start: int, path: list[int]) -> Tensor:
        """Logits after a drafted path, at KV length `start`: row p reads token p + 1 and the state of position p."""
        tokens, states = self.tokens[1 : start + 1], list(self.states[:start])
        if self.masks is not None:
            tokens, states = tokens + [self.masks[0]] * len(path), states + [self.masks[1]] * len(path)
            return self.model.logits(self.model.run(torch.tensor(tokens), states)[-1])
        out = self.model.run(torch.tensor(tokens), states)
        for i in range(len(path)):
            tokens, states = [*tokens, path[i]], [*states, out[-1]]
            out = self.model.run(torch.tensor(tokens), states)
        return self.model.logits(out[-1])

    def check_chain(self, proposal: Proposal) -> None:
        for depth, token in enumerate(proposal.tokens[1:]):
            logits = self.after(proposal.start, proposal.tokens[1 : depth + 1])
            assert logits.max() - logits[token] < 1e-3, (proposal, depth)

    def best(self, start: int, steps: int, topk: int, nodes: int) -> set[tuple[int, ...]]:
        """EAGLE-2's tree by brute force."""
        candidates: list[tuple[tuple[int, ...], float]] = []
        beams: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for _ in range(steps):
            grown = []
            for path, score in beams:
                probs, ids = torch.softmax(self.after(start, list(path)), -1).topk(topk)
                pairs = zip(ids.tolist(), probs.tolist(), strict=True)
                grown += [((*path, token), score * p) for token, p in pairs]
            candidates += grown
            beams = sorted(grown, key=lambda c: -c[1])[:topk]
        return {path for path, _ in sorted(candidates, key=lambda c: -c[1])[: nodes - 1]}


def paths(proposal: Proposal) -> set[tuple[int, ...]]:
    drafted: list[tuple[int, ...]] = []
    for parent, token in zip(proposal.parents, proposal.tokens, strict=True):
        drafted.append(() if parent < 0 else (*drafted[parent], token))
    return set(drafted[1:])
