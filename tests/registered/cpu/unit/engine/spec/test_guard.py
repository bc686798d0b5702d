"""The guard alone: its messages, replacement drafts and copies; in quarantine it calls no hook."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, chain
from specmatrix.engine.spec.guard import (
    ANCESTORS,
    BATCH,
    DEPTH,
    DUPLICATE,
    FINITE,
    PARENT,
    ROOT,
    TOKEN,
    VIOLATIONS,
    Guard,
    copied_batch,
    read,
)
from specmatrix.engine.spec.verify import verify
from specmatrix.kernels.tree_layout import tree_layout

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


def guard_of(
    tree,
    carries=(),
    calls: list[str] | None = None,
    act: Callable[[], object] = lambda: None,
    vocab: int = VOCAB,
    built_in: bool = False,
    chains: bool = False,
) -> Guard:
    """tree: what `propose` returns after it called `act`."""

    def propose(batch, relay):
        (calls if calls is not None else []).append("propose")
        act()
        return tree

    drafter: Any = SimpleNamespace(
        traits=SimpleNamespace(name="ODD", reads_host=False),
        carries=carries,
        propose=propose,
        absorb=lambda batch, verdict, aux: None,
    )
    return Guard(drafter, vocab, lambda: None, built_in, chains)


def asked(guard, batch) -> DraftTree:
    guard.begin(batch)
    relay: Any = None
    return guard.propose(batch, relay)


def test_an_honest_tree_passes_as_it_is():
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    guard = guard_of(tree)
    given = asked(guard, batch)
    assert all(torch.equal(own, proposed) for own, proposed in zip(given[:4], tree[:4], strict=True))
    assert guard.codes().tolist() == [0, 0, 0] and guard.message(0) is None and guard.error is None


def test_several_lies_are_all_reported():
    assert guard_of(None).message(0b110) == (
        f"the drafter of ODD {VIOLATIONS[1]} and {VIOLATIONS[2]}; the request was stopped, and its "
        "tokens so far are exact"
    )


@pytest.mark.parametrize(
    ("part", "node", "value", "seen"),
    [
        ("tokens", 0, 3, {ROOT}),
        ("tokens", 3, -1, {TOKEN}),
        ("tokens", 3, VOCAB, {TOKEN}),
        ("tokens", 2, 20, {DUPLICATE}),  # as its sibling
        ("tokens", 3, 20, set()),  # as its parent
        ("tokens", 3, 21, set()),  # as its parent's sibling
        ("parents", 0, 0, {PARENT}),
        ("parents", 2, 2, {PARENT, DEPTH, ANCESTORS}),
        ("parents", 4, 4, {PARENT}),  # read as its true one
        ("parents", 2, -1, {PARENT}),  # read as the root
        ("depths", 4, 2, {DEPTH}),
        ("ancestors", 4, False, {ANCESTORS}),
    ],
)
def test_one_lie_about_a_tree_is_named(part, node, value, seen):
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    tree = tree._replace(parents=tree.parents.clone())
    getattr(tree, part)[0, node] = value
    guard = guard_of(tree)
    asked(guard, batch)
    assert guard.codes().tolist() == [sum(1 << bit for bit in seen), 0, 0]


BEYOND = "asked to verify fewer than one or more than all of its nodes"


@pytest.mark.parametrize("length", [0, 6])
def test_a_row_that_verifies_more_or_fewer_nodes_than_it_has_verifies_its_root(length):
    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch)._replace(lengths=torch.tensor([5, length, 1])))
    assert asked(guard, batch).lengths.tolist() == [5, 1, 1]
    assert guard.codes().tolist() == [0, 1 << VIOLATIONS.index(BEYOND), 0]


def test_equal_tokens_of_different_parents_are_no_duplicates_in_a_large_vocabulary_either():
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    tree.tokens[0, 1:4] = torch.tensor([150_000, 150_001, 150_000])  # the third is a child of the first
    guard = guard_of(tree, vocab=200_000)
    asked(guard, batch)
    assert guard.codes().tolist() == [0, 0, 0]


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_bad_row_of_a_tree_becomes_a_tree_that_verifies_exactly(row):
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    tree.tokens[row, 4] = VOCAB
    guard = guard_of(tree)
    mended = asked(guard, batch)
    assert guard.codes().tolist() == [2 if r == row else 0 for r in range(3)]
    depths, ancestors = tree_layout(mended.parents)
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


def test_a_tree_is_refused_where_only_chains_are_verified():
    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch), chains=True)
    with pytest.warns(RuntimeWarning, match="proposed a tree, for which only speculative_acceptance match is defined"):
        assert asked(guard, batch).ancestors is None


def test_no_path_is_longer_than_the_trees_depth():
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tuple(tree), "proposed a tuple, not a DraftTree"),
        (lambda tree: tree._replace(depth=5), "proposed depth 5 in a round of 5 nodes"),
        (lambda tree: tree._replace(depth=0), "proposed depth 0 in a round of 5 nodes"),
        (lambda tree: tree._replace(ancestors=None, depth=3), "proposed depth 3 in a round of 5 nodes"),
        (lambda tree: tree._replace(tokens=tree.tokens[:, 1:]), "proposed tokens with shape (3, 4) and torch.int64"),
        (lambda tree: tree._replace(parents=tree.parents.int()), "proposed parents with shape (3, 5) and torch.int32"),
        (lambda tree: tree._replace(ancestors=tree.parents), "proposed ancestors with shape (3, 5) and torch.int64"),
        (lambda tree: tree._replace(depths=tree.depths.to("meta")), "proposed depths on device meta in a step on cpu"),
        (lambda tree: tree._replace(q=torch.ones(3, 5, VOCAB)), "proposed q with shape (3, 5, 50) and torch.float32"),
    ],
)
def test_what_is_no_tree_of_the_round_puts_the_drafter_in_quarantine(change, words):
    batch = batch_of(3, 5)
    guard = guard_of(change(tree_of(batch)))
    with pytest.warns(RuntimeWarning, match="rounds continue without drafts"):
        asked(guard, batch)
    assert guard.error.startswith(f"the drafter of ODD {words}")


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_values_that_are_not_finite_are_reported_and_carried_as_zeros(shape):
    batch = batch_of(3, 5)
    score = torch.full((3, *shape), 0.5)
    score.view(3, -1)[1, -1], score.view(3, -1)[2, 0] = float("nan"), -float("inf")
    age = torch.ones(3, dtype=torch.int64)
    carries = (DraftStateSpec("age", (), torch.int64), DraftStateSpec("score", shape, torch.float32))
    guard = guard_of(None, carries=carries)
    guard.drafter.absorb = lambda batch, verdict, aux: {"age": age, "score": score.clone()}
    guard.begin(batch)
    state = guard.absorb(batch, VerifyResult(batch.root, batch.rows, batch.root), None)
    assert guard.codes().tolist() == [0, 1 << FINITE, 1 << FINITE] and guard.error is None
    assert torch.equal(state["score"], torch.where(score == 0.5, score, 0)) and torch.equal(state["age"], age)


SHAPED = "expected (3, 2) and torch.float32"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([1], "carried a list, not a mapping of tensors"),
        (None, "carried 'score' of type NoneType, expected a dense tensor"),
        ({"scores": torch.zeros(3, 2)}, "carried 'score' of type NoneType, expected a dense tensor"),
        ({"score": [[0.0, 0.0]] * 3}, "carried 'score' of type list, expected a dense tensor"),
        ({"score": torch.zeros(2, 2)}, f"carried 'score' with shape (2, 2) and torch.float32, {SHAPED}"),
        ({"score": torch.zeros(3, 2).half()}, f"carried 'score' with shape (3, 2) and torch.float16, {SHAPED}"),
        ({"score": torch.zeros(3, 2, device="meta")}, "carried 'score' on device meta in a step on cpu"),
    ],
)
def test_what_is_no_state_of_the_drafter_puts_it_in_quarantine(state, words):
    batch = batch_of(3, 5)
    guard = guard_of(None, carries=(DraftStateSpec("score", (2,), torch.float32),))
    guard.drafter.absorb = lambda batch, verdict, aux: state
    guard.begin(batch)
    with pytest.warns(RuntimeWarning, match="rounds continue without drafts"):
        assert guard.absorb(batch, VerifyResult(batch.root, batch.rows, batch.root), None) is None
    assert guard.error.startswith(f"the drafter of ODD {words}; it is not called again")


def test_padding_in_the_place_of_bad_drafts_is_drawn_from_a_point_mass():
    batch = batch_of(3, 3)
    q = torch.full((3, 2, VOCAB), 1 / VOCAB)
    tokens = torch.cat((batch.root, torch.tensor([[1, 2], [3, VOCAB], [4, 5]])), 1)
    mended = asked(guard_of(chain(tokens)._replace(q=q)), batch)
    assert mended.tokens[:, 1:].tolist() == [[1, 2], [0, 0], [4, 5]]
    assert mended.q[1].argmax(1).tolist() == [0, 0] and mended.q[1].sum().item() == 2
    assert torch.equal(mended.q[::2], q[::2]) and mended.q.data_ptr() != q.data_ptr()


def test_in_quarantine_no_hook_is_called_and_rounds_of_any_width_continue():
    calls: list[str] = []
    quarantined: list[int] = []
    batch = batch_of(2, 3)
    guard = guard_of((1, 2), calls=calls)
    guard.on_quarantine = lambda: quarantined.append(1)
    with pytest.warns(RuntimeWarning, match="the drafter of ODD proposed a tuple, not a DraftTree"):
        first = asked(guard, batch)
    assert first.tokens.tolist() == [[7, 0, 0], [8, 0, 0]]
    assert asked(guard, batch_of(2, 1)).tokens.tolist() == [[7], [8]]
    verdict = VerifyResult(torch.zeros(2, 3).long(), torch.ones(2).long(), torch.zeros(2, 3).long())
    assert guard.absorb(batch, verdict, None) is None
    assert calls == ["propose"] and quarantined == [1]


def test_a_built_in_drafter_is_checked_without_copies():
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    guard = guard_of(tree, built_in=True)
    given: list[StepBatch] = []
    guard.drafter.propose = lambda batch, relay: given.append(batch) or tree
    shown = asked(guard, batch)
    assert given[0] is batch and all(own is proposed for own, proposed in zip(shown[:4], tree[:4], strict=True))
    tree.tokens[1, 2] = VOCAB
    asked(guard, batch)
    assert guard.codes().tolist() == [0, 1 << TOKEN, 0]


def test_a_tree_that_changes_after_it_was_returned_is_not_the_engines():
    batch = batch_of(3, 5)
    tree = tree_of(batch)
    given = asked(guard_of(tree), batch)
    for tensor in tree[:4]:
        tensor.zero_()
    assert given.tokens[:, 1:].tolist() == [[20, 21, 22, 23]] * 3 and given.ancestors[:, 0, 0].all()
    assert torch.equal(given.parents, torch.tensor([[-1, 0, 0, 1, 3], [-1, 0, 1, 2, 3], [-1, 0, 0, 0, 1]]))


def test_a_setting_that_a_hook_changes_is_restored_and_reported():
    before, batch = read(), batch_of(3, 5)
    guard = guard_of(tree_of(batch), act=lambda: torch.set_default_dtype(torch.float64))
    with pytest.warns(RuntimeWarning, match="rounds continue without drafts"):
        asked(guard, batch)
    assert guard.error == (
        "the drafter of ODD changed the default dtype from torch.float32 to torch.float64 in propose; it is not called "
        "again, and rounds continue without drafts"
    )
    assert read() == before


def test_a_setting_is_restored_when_an_interrupt_comes():
    def act() -> None:
        torch.set_default_dtype(torch.float64)
        raise KeyboardInterrupt

    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch), act=act)
    with pytest.raises(KeyboardInterrupt):
        asked(guard, batch)
    assert torch.get_default_dtype() is torch.float32


def test_the_modes_of_autograd_are_restored():
    kept = []

    def act() -> None:
        torch.set_grad_enabled(True)
        kept.append(torch.inference_mode(False))
        kept[0].__enter__()

    def modes() -> tuple[bool, bool, str | None]:
        batch = batch_of(3, 5)
        guard = guard_of(tree_of(batch), act=act)
        with torch.inference_mode():
            asked(guard, batch)
            left = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), guard.error
        kept.clear()
        return left

    # The modes belong to a thread; torch writes those of the hook again when the kept context is destroyed.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(modes).result() == (True, False, None)


@pytest.mark.parametrize("error", [TimeoutError, SystemExit])
def test_what_a_signals_handler_raises_is_not_the_drafters(error):
    def handle(number: int, frame: object) -> None:
        raise error

    batch = batch_of(3, 5)
    guard = guard_of(tree_of(batch), act=lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(error):
            asked(guard, batch)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.error is None


def relayed(width: int) -> StepBatch:
    """Rows 1 and 2, of which a round has just published lengths and bonus tokens."""
    relay = Relay(4, (DraftStateSpec("score", (), torch.float32),), torch.device("cpu"))
    rows = torch.tensor([1, 2])
    relay.publish(rows, torch.tensor([5, 6]), torch.tensor([[7], [8]]))
    start, root = relay.lengths_and_roots(rows)
    slots = torch.arange(40).view(2, 20)
    return StepBatch(rows, start, root, width, 20, slots, torch.tensor([3, 3]), relay=relay, generations=rows + 5)


@pytest.mark.parametrize("width", [1, 3])
def test_the_batch_that_is_lent_is_alike_and_shares_no_memory(width):
    batch = relayed(width)
    lent = copied_batch(batch)
    for name in (*BATCH, "positions", "write"):
        own, copied = getattr(batch, name), getattr(lent, name)
        assert torch.equal(own, copied)
        assert own.untyped_storage().data_ptr() != copied.untyped_storage().data_ptr()


def test_the_relay_passed_to_hooks_is_a_copy_that_shares_carried_state():
    batch = relayed(1)
    own, lent = batch.relay, copied_batch(batch).relay
    assert own is not None and lent is not None
    assert lent.length.tolist() == [0, 5, 6, 0] and lent.last.flatten().tolist() == [0, 7, 8, 0]
    assert own.length.tolist() == [0, 0, 0, 0]  # the engine's is not settled behind its back
    assert lent.carried is own.carried
    lent.last.zero_()
    lent.sampling.top_p.zero_()
    assert own.sampling.top_p.tolist() == [1, 1, 1, 1]
    assert own.lengths_and_roots(batch.rows)[1].tolist() == [[7], [8]]
