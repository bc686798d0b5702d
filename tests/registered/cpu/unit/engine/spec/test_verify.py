"""Sample, then match: the verifier accepts exactly the path that plain decoding would have taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specmatrix.engine.device.sampling import COINS, NOISE, RESIDUAL, SamplingRows, drawn_drafts, pick, stream, uniform
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


RULES = ("reject", "block")


def drawn_chain(logits: Tensor, start: Tensor, rows: SamplingRows, steps: int) -> DraftTree:
    """Chains drawn from other logits than the target's."""
    columns = torch.arange(1, steps + 1)
    drafts, q = drawn_drafts(logits[:, :steps] + 1.5 * logits[:, 1 : steps + 1].roll(1, 2), start, columns, rows)
    return chain(torch.cat((torch.zeros(len(start), 1, dtype=torch.int64), drafts), 1))._replace(q=q)


def case_of(batch: int, steps: int = 3) -> tuple[Tensor, DraftTree, Tensor, SamplingRows]:
    logits = torch.randn(batch, steps + 1, VOCAB, generator=torch.Generator().manual_seed(4)) * 2
    start, rows = torch.arange(batch) + 3, rows_of(batch)
    return logits, drawn_chain(logits, start, rows, steps), start, rows


def emitted(verdict) -> list[list[int]]:
    return [row[:n] for row, n in zip(verdict.tokens.tolist(), verdict.count.tolist(), strict=True)]


@pytest.mark.parametrize("rule", RULES)
def test_under_rejection_greedy_rows_are_as_if_matched(rule):
    logits, tree, start, rows = case_of(80)
    by_rule, matched = verify(logits, tree, start, rows, rule=rule), verify(logits, tree, start, rows)
    assert emitted(by_rule)[::4] == emitted(matched)[::4] and emitted(by_rule) != emitted(matched)
    alone = verify(logits, tree, start, None, rule=rule)
    assert emitted(alone) == emitted(verify(logits, tree, start, None)) and by_rule.moved is None
    assert by_rule.count.max() == 4 and by_rule.count.min() == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_row_alone_is_verified_as_among_others_also_beside_rows_without_drafts(rule):
    logits, tree, start, rows = case_of(12)
    together = emitted(verify(logits, tree, start, rows, rule=rule))
    for b in range(12):
        cut = slice(b, b + 1)
        own = chain(tree.tokens[cut])._replace(q=tree.q[cut])
        assert emitted(verify(logits[cut], own, start[cut], one(rows, b), rule=rule)) == [together[b]]
    # A round without drafts draws as plain decoding does, so that nothing has moved on in the next one.
    root = chain(tree.tokens[:, :1])
    assert emitted(verify(logits[:, :1], root, start, rows, rule=rule)) == [
        [token] for token in pick(logits[:, :1], start[:, None] + 1, rows)[:, 0].tolist()
    ]


@pytest.mark.parametrize("rule", RULES)
def test_drafts_without_a_distribution_are_point_masses(rule):
    logits, tree, start, rows = case_of(40)
    points = torch.nn.functional.one_hot(tree.tokens[:, 1:], VOCAB).float()
    verdict = verify(logits, tree._replace(q=None), start, rows, rule=rule)
    assert emitted(verdict) == emitted(verify(logits, tree._replace(q=points), start, rows, rule=rule))
    assert emitted(verdict) != emitted(verify(logits, tree, start, rows, rule=rule))


def test_the_streams_share_no_number_with_each_other_or_with_another_column_or_position():
    seed, start, columns = torch.tensor([5, 6]), torch.tensor([9, 9]), torch.arange(1, 6)
    drawn = [stream(which, seed, start + more, columns) for which in (NOISE, COINS, RESIDUAL) for more in range(4)]
    drawn.append(uniform(seed, torch.arange(30).expand(2, -1).contiguous()))
    numbers = torch.cat(drawn, 1).flatten()
    assert len(numbers.unique()) == len(numbers) and bool((numbers < 1).all())
    assert torch.equal(drawn[0], stream(NOISE, seed, start, columns))
