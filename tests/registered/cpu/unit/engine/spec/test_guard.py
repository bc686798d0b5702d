"""The guard alone: what it tells, what it puts in a bad row's place, and that it asks nobody in quarantine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.spec.drafter import DraftTree, chain
from specmatrix.engine.spec.guard import VIOLATIONS, Guard
from specmatrix.engine.spec.verify import verify
from specmatrix.kernels.tree_layout import tree_layout

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

VOCAB = 50
PARENTS = torch.tensor([[-1, 0, 0, 1, 3], [-1, 0, 1, 2, 3], [-1, 0, 0, 0, 1]])


def batch_of(rows: int, width: int) -> StepBatch:
    slots = torch.zeros(rows, 20, dtype=torch.int64)
    root = torch.arange(rows)[:, None] + 7
    return StepBatch(torch.arange(1, rows + 1), torch.full((rows,), 9), root, width, 20, slots, None)


def tree_of(batch) -> DraftTree:
    depths, ancestors = tree_layout(PARENTS)
    tokens = torch.cat((batch.root, torch.arange(20, 24).expand(3, -1)), 1)
    return DraftTree(tokens, PARENTS, depths, ancestors, 4)


def guard_of(tree, carries=(), calls: list[str] | None = None) -> Guard:
    def propose(batch, relay):
        (calls if calls is not None else []).append("propose")
        return tree

    drafter: Any = SimpleNamespace(
        traits=SimpleNamespace(name="ODD", reads_host=False),
        carries=carries,
        propose=propose,
        absorb=lambda batch, verdict, aux: None,
    )
    return Guard(drafter, VOCAB, lambda: None)


def asked(guard, batch) -> DraftTree:
    guard.begin(batch)
    relay: Any = None
    return guard.propose(batch, relay)


def test_an_honest_tree_passes_as_it_is():
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    guard = guard_of(tree)
    assert asked(guard, batch) is tree
    assert guard.codes().tolist() == [0, 0, 0] and guard.message(0) is None and guard.error is None


def test_several_lies_are_all_told():
    assert guard_of(None).message(0b110) == (
        f"the drafter of ODD {VIOLATIONS[1]} and {VIOLATIONS[2]}; the request was stopped, and its "
        "tokens so far are exact"
    )


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_bad_row_of_a_tree_becomes_a_tree_that_verifies_exactly(row):
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    tree.tokens[row, 4] = VOCAB
    guard = guard_of(tree)
    mended = asked(guard, batch)
    assert guard.codes().tolist() == [2 if r == row else 0 for r in range(3)]
    depths, ancestors = tree_layout(mended.parents, checked=True)
    assert torch.equal(mended.depths, depths) and torch.equal(mended.ancestors, ancestors)
    others = [r for r in range(3) if r != row]
    for kept, given in zip(mended[:4], tree[:4], strict=True):
        assert torch.equal(kept[others], given[others])
    assert len(set(mended.tokens[row, 1:].tolist())) == 4 and mended.parents[row].tolist() == [-1, 0, 0, 0, 0]
    logits = torch.zeros(3, 5, VOCAB)
    logits[:, :, 2] = 1  # the target says 2 everywhere: one of the padding nodes happens to be right
    verdict = verify(logits, mended, batch.start, None)
    assert verdict.count[row] == 2 and verdict.tokens[row, :2].tolist() == [2, 2]


def test_a_bad_row_of_a_chain_becomes_a_chain():
    batch = batch_of(2, 4)
    tokens = torch.cat((batch.root, torch.tensor([[1, 2, 3], [4, -5, 6]])), 1)
    mended = asked(guard_of(chain(tokens)), batch)
    assert mended.tokens.tolist() == [[7, 1, 2, 3], [8, 0, 0, 0]] and mended.ancestors is None


def test_no_path_is_longer_than_the_tree_says():
    """The accept matrix is depth + 1 wide; a longer path would be cut off."""
    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch)._replace(depth=2))
    mended = asked(guard, batch)
    assert guard.codes().tolist() == [8, 8, 0] and int(mended.depths.max()) == 2


def test_a_chain_must_be_one():
    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch)._replace(ancestors=None))
    asked(guard, batch)
    assert [bool(code & 0b100) for code in guard.codes().tolist()] == [True, False, True]


def test_in_quarantine_nobody_is_asked_and_rounds_of_any_width_go_on():
    calls: list[str] = []
    told: list[int] = []
    batch = batch_of(2, 3)
    guard = guard_of(None, calls=calls)
    guard.on_quarantine = lambda: told.append(1)
    with pytest.warns(RuntimeWarning, match="the drafter of ODD proposed a NoneType, not a DraftTree"):
        first = asked(guard, batch)
    assert first.tokens.tolist() == [[7, 0, 0], [8, 0, 0]]
    assert asked(guard, batch_of(2, 1)).tokens.tolist() == [[7], [8]]
    verdict: Any = None
    assert guard.absorb(batch, verdict, None) is None
    assert calls == ["propose"] and told == [1]
