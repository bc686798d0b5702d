"""The drafter protocol and the tree that a drafter proposes.

A drafter sees batches and target outputs, but no requests, ledger, scheduler or configuration.

Drafter `none`: a tree of one node. Plain decoding uses the same path as speculation, with width 1.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import Traits, algorithm
from specmatrix.engine.device.batch import StepBatch, count, past
from specmatrix.engine.device.batch import VerifyResult as VerifyResult
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.device.token_tables import GrammarRows


class DraftTree(NamedTuple):
    """One proposal per request: N nodes, node 0 the root (the last known token).

    tokens [B, N] int64; parents [B, N] int64 with parents[:, 0] == -1 and parents[:, n] < n; depths [B, N];
    ancestors [B, N, N] bool, or None for a chain, where it is the causal triangle; depth: longest path allowed.
    q [B, N - 1, V] float32, chains only: the distribution over the target's vocabulary that each draft was drawn from;
    None if drafts are deterministic, so that each q is a point mass. lengths [B] int64: how many of a row's first nodes
    are verified, at least the root; None if all are. confidences [B, N - 1] float32, of each draft of a chain, for the
    next rounds' budgets; None without a budget.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor | None
    depth: int
    q: Tensor | None = None
    lengths: Tensor | None = None
    confidences: Tensor | None = None

    def within(self, room: Tensor) -> DraftTree:
        """The tree of which no row verifies a node of depth `room` [B] or more, nor one after it."""
        lengths = (self.depths < room[:, None]).cumprod(1).sum(1)
        return self._replace(lengths=lengths if self.lengths is None else torch.minimum(lengths, self.lengths))

    @property
    def verified(self) -> Tensor:
        """Tokens [B, N], -1 for nodes that are not verified, which is no token."""
        if self.lengths is None:
            return self.tokens
        return self.tokens.masked_fill(past(self.lengths, self.tokens.shape[1]), -1)

    @property
    def places(self) -> tuple[Tensor, Tensor | None]:
        """Depths and ancestors that attention uses: a node that is not verified is in the root's place."""
        if self.lengths is None or self.ancestors is None:
            return self.depths, self.ancestors
        beyond = past(self.lengths, self.tokens.shape[1])
        ancestors = torch.where(beyond[:, :, None], self.ancestors[:, :1], self.ancestors)
        return self.depths.masked_fill(beyond, 0), ancestors


class DraftHooks(Protocol):
    """Hooks called by steps. prime and absorb return the state that the relay keeps for the next round, or None."""

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        """After a prefill step. tokens [B, W] prompt chunk, or in a mixed step a running request's last token; aux
        [B, W, A] captured states; sampled [B] the target's next token; following [B] the next prompt token, or -1 if
        the chunk is the last."""
        ...

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        """A tree for each request, from the state in the relay. A drafter of the host's tokens may `narrow` the batch
        to its widest tree."""
        ...

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState | None:
        """After verification. aux [B, D+1, A]: captured states along the accepted path."""
        ...


class Drafter(DraftHooks, Protocol):
    """Proposes trees.

    A round has batch.width nodes. A chain drafter fills any width (1: the root alone); a tree drafter always gets its
    own `nodes`.
    """

    traits: Traits
    nodes: int  # N, root included, of the widest round
    steps: int  # requested depth, 0 for none
    topk: int  # maximum children of a node, 0 for none
    capture: tuple[int, ...]  # target layers whose input states are needed; FINAL: after the final norm
    carries: tuple[DraftStateSpec, ...]  # what the relay keeps between rounds
    key_span: int  # tokens past a page's end that the page's draft KV depends on


def chain(tokens: Tensor) -> DraftTree:
    """A chain as a tree. tokens [B, N], root first."""
    tree = shared_chain(tokens)
    return tree._replace(parents=tree.parents.clone(), depths=tree.depths.clone(memory_format=torch.contiguous_format))


def shared_chain(tokens: Tensor, q: Tensor | None = None, lengths: Tensor | None = None) -> DraftTree:
    """`chain` for built-in drafters; its parents and depths are shared between engines and read-only."""
    batch, nodes = tokens.shape
    parents, depths = _line(batch, nodes, tokens.device)
    return DraftTree(tokens, parents, depths, None, nodes - 1, q, lengths)


def confidence(logits: Tensor) -> Tensor:
    """The draft's probability of its best token [B, W], from logits [B, W, V]. It depends on earlier tokens only, so
    that a length chosen by it leaves a drawn draft its distribution."""
    return torch.softmax(logits.float(), -1).amax(-1)


def confident_nodes(confidences: Tensor, threshold: float) -> Tensor:
    """Nodes [B] of chains, root included, whose draft and all before it are right with a probability of at least
    `threshold`, by confidences [B, W] of each draft."""
    return 1 + (confidences.cumprod(1) >= threshold).sum(1)


def followed(grammar: GrammarRows | None, states: Tensor | None, tokens: Tensor) -> Tensor | None:
    """The states [B, W] after drafts [B, W] that follow states [B, W], 0 after one that is forbidden; None without a
    grammar."""
    return None if grammar is None or states is None else grammar.after(states, tokens).clamp(min=0)


def agreed_tree(tree: DraftTree, ranks: Ranks) -> DraftTree:
    """Rank 0's tree, on every rank (sglang#40246, vllm#31307)."""
    if ranks.size == 1:
        return tree
    if tree.lengths is not None:
        tree = tree._replace(lengths=ranks.agreed(tree.lengths))
    if tree.confidences is not None:  # the ranks' budgets follow from their bits
        tree = tree._replace(confidences=ranks.agreed(tree.confidences.view(torch.int32)).view(torch.float32))
    if tree.ancestors is None:
        return tree._replace(tokens=ranks.agreed(tree.tokens))
    columns = torch.stack((tree.tokens, tree.parents, tree.depths), 2)
    whole = ranks.agreed(torch.cat((columns, tree.ancestors.long()), 2))
    tokens, parents, depths = (column.contiguous() for column in whole[..., :3].unbind(2))
    return tree._replace(tokens=tokens, parents=parents, depths=depths, ancestors=whole[..., 3:].bool())


class AgreedDrafts:
    """A drafter's hooks, with rank 0's proposals on every rank."""

    def __init__(self, drafter: DraftHooks, ranks: Ranks) -> None:
        self._ranks = ranks
        self._drafter, self.prime, self.absorb = drafter, drafter.prime, drafter.absorb
        self._tokens: Tensor | None = None

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        tree = agreed_tree(self._drafter.propose(batch, relay), self._ranks)
        self._tokens = tree.tokens
        return tree

    def take(self) -> Tensor | None:
        """Returns and clears the draft tokens [B, N] proposed since the last call; None after a prefill step."""
        tokens, self._tokens = self._tokens, None
        return tokens


def shift_left(tokens: Tensor, lengths: Tensor, sampled: Tensor, following: Tensor) -> Tensor:
    """The successor of each token of a prompt chunk [B, W] with `lengths` [B] tokens, for drafters that pair a
    position's state with the next token. sampled, following [B]: as in `Drafter.prime`.
    """
    tail = torch.where(following < 0, sampled, following)
    return tokens.roll(-1, 1).scatter(1, (lengths - 1)[:, None], tail[:, None])


@cache
def _line(batch: int, nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Parents and depths of a chain; cached, because every round needs them."""
    with torch.inference_mode(False):
        depths = count(nodes, device).expand(batch, -1)
        return depths - 1, depths


class StatelessDrafter:
    """A drafter without a network: it reads nothing of the target's and leaves no state for the next round."""

    capture: tuple[int, ...] = ()
    carries: tuple[DraftStateSpec, ...] = ()
    key_span = 0

    def prime(self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor) -> None:
        return None

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> None:
        return None


class PlainDrafter(StatelessDrafter):
    """Proposes only the root."""

    traits = algorithm("NONE")
    nodes = 1
    depth = steps = topk = 0

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        return shared_chain(batch.root)
