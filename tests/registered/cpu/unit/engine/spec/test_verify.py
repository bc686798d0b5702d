"""Sample, then match: the verifier accepts exactly the path that plain decoding would have taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specmatrix.engine.device.sampling import SamplingRows, pick
from specmatrix.engine.spec.drafter import DraftTree, chain
from specmatrix.engine.spec.verify import verify
from specmatrix.kernels.tree_layout import tree_layout
from specmatrix.kernels.tree_layout.cases import random_parents

VOCAB = 7


def tree_of(tokens: Tensor, parents: Tensor, depth: int) -> DraftTree:
    depths, ancestors = tree_layout(parents)
    return DraftTree(tokens, parents, depths, ancestors, depth)


def wants(choices) -> Tensor:
    """Logits [1, N, V] whose argmax after each node is the given token."""
    logits = torch.zeros(1, len(choices), 30)
    for node, token in enumerate(choices):
        logits[0, node, token] = 5.0
    return logits


ROOT, A, B, C, E, G, X = 10, 11, 12, 13, 14, 15, 16
WORKED = torch.tensor([[-1, 0, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("choices", "path", "emitted"),
    [
        ([A, C, 1, G, 1, X], [0, 1, 3, 5], [A, C, G, X]),
        ([A, C, 1, X, 1, 1], [0, 1, 3], [A, C, X]),
        ([X, C, E, G, 1, 1], [0], [X]),
        # A grandchild that matches below a child that does not is not reached.
        ([1, C, 1, G, 1, X], [0], [1]),
        # E hangs below B; after A it is not a draft.
        ([A, E, 1, 1, X, 1], [0, 1], [A, E]),
    ],
)
def test_exactly_the_path_of_the_target_is_accepted(choices, path, emitted):
    tree = tree_of(torch.tensor([[ROOT, A, B, C, E, G]]), WORKED, 3)
    verdict = verify(wants(choices), tree, torch.tensor([5]), None)
    assert verdict.count.item() == len(path)
    assert verdict.path[0, : len(path)].tolist() == path
    assert verdict.tokens[0, : len(path)].tolist() == emitted
    assert verdict.path.shape == verdict.tokens.shape == (1, 4)


@pytest.mark.parametrize(("agree", "count"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_a_chain_is_accepted_up_to_its_first_miss(agree, count):
    tokens = [ROOT, A, B, C]
    choices = [*tokens[1 : agree + 1], *[X] * (4 - agree)]
    if agree < 2:
        choices[3] = G  # what follows a miss does not matter
    verdict = verify(wants(choices), chain(torch.tensor([tokens])), torch.tensor([9]), None)
    assert verdict.count.item() == count and verdict.tokens[0, :count].tolist() == choices[:count]
    assert verdict.path.tolist() == [[0, 1, 2, 3]]


def test_a_root_alone_gives_one_token():
    verdict = verify(wants([A]), chain(torch.tensor([[ROOT]])), torch.tensor([0]), None)
    assert (verdict.count.tolist(), verdict.tokens.tolist()) == ([1], [[A]])


def rows_of(batch: int) -> SamplingRows:
    """Greedy, high-temperature and truncated requests in one batch."""
    temperature = torch.tensor([0.0, 1.0, 0.7, 1.3]).repeat(batch)[:batch]
    top_k = torch.tensor([0, 0, 3, 0]).repeat(batch)[:batch]
    top_p = torch.tensor([1.0, 1.0, 1.0, 0.8]).repeat(batch)[:batch]
    return SamplingRows(temperature, top_k, top_p, torch.arange(batch) + 5)


def one(rows: SamplingRows, b: int) -> SamplingRows:
    return SamplingRows(*(field[b : b + 1] for field in rows))


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_verdict_equals_sampling_token_by_token(shape, sampled):
    """Walk each tree by hand, drawing alone at every node, as plain decoding does."""
    batch, nodes = 60, 6
    g = torch.Generator().manual_seed(4)
    parents = random_parents(batch, nodes, g) if shape == "tree" else (torch.arange(nodes) - 1).expand(batch, -1)
    # Distinct siblings: children of a node take tokens in turn.
    tokens = torch.zeros(batch, nodes, dtype=torch.int64)
    for b in range(batch):
        for n in range(1, nodes):
            rank = int((parents[b, :n] == parents[b, n]).sum())
            tokens[b, n] = (b + rank) % VOCAB
    tree = chain(tokens) if shape == "chain" else tree_of(tokens, parents, nodes - 1)
    start = torch.arange(batch) + 3
    logits = torch.randn(batch, nodes, VOCAB, generator=g) * 2
    rows = rows_of(batch) if sampled else None
    verdict = verify(logits, tree, start, rows)
    longest = 0
    for b in range(batch):
        node, path, emitted = 0, [0], []
        while True:
            at = torch.tensor([[int(start[b]) + len(path)]])
            token = pick(logits[b, node][None, None], at, None if rows is None else one(rows, b)).item()
            emitted.append(token)
            child = [n for n in range(nodes) if parents[b, n] == node and tokens[b, n] == token]
            if not child:
                break
            node = child[0]
            path.append(node)
        count = int(verdict.count[b])
        longest = max(longest, count)
        assert count == len(path)
        assert verdict.path[b, :count].tolist() == path
        assert verdict.tokens[b, :count].tolist() == emitted
    assert longest > 2
