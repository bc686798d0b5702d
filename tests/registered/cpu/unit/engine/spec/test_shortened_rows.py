"""Rounds whose rows verify a part of their drafts."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.core.draft.algorithms import nodes_within
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.engine.spec.drafter import DraftTree, chain, confident_nodes
from specmatrix.engine.spec.verify import verify
from specmatrix.kernels.tree_layout import tree_layout
from tests.support.drawn_drafts import PROMPTS, start

CPU = torch.device("cpu")
# Root, two children, one child of each, one grandchild of the first.
PARENTS = torch.tensor([[-1, 0, 0, 1, 2, 3]])


def tree() -> DraftTree:
    depths, ancestors = tree_layout(PARENTS)
    return DraftTree(torch.tensor([[9, 1, 2, 3, 4, 5]]), PARENTS, depths, ancestors, 3)


def test_a_tree_has_as_many_nodes_as_its_room_can_emit():
    cases = (1, 4, 8, 1), (2, 4, 8, 5), (3, 4, 8, 8), (3, 1, 6, 3), (9, 1, 6, 6), (3, 2, 9, 7)
    assert all(nodes_within(room, topk, most) == nodes for room, topk, most, nodes in cases)


@pytest.mark.parametrize(("room", "length"), [(1, 1), (2, 3), (3, 5), (4, 6), (9, 6)])
def test_a_row_verifies_the_nodes_before_the_first_that_is_too_deep(room, length):
    short = tree().within(torch.tensor([room]))
    assert short.lengths.tolist() == [length]
    assert short.verified.tolist() == [[9, 1, 2, 3, 4, 5][:length] + [-1] * (6 - length)]
    depths, ancestors = short.places
    assert depths[0, length:].tolist() == [0] * (6 - length) and ancestors[0, :, 0].all()
    assert not ancestors[0, length:, 1:].any() and torch.equal(ancestors[0, :length], tree().ancestors[0, :length])


def test_a_drafters_own_length_and_the_room_both_hold():
    asked = chain(torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]]))._replace(lengths=torch.tensor([1, 3, 2]))
    assert asked.within(torch.tensor([3, 2, 9])).lengths.tolist() == [1, 2, 2]


@pytest.mark.parametrize("length", range(1, 7))
def test_a_tree_is_accepted_as_far_as_it_was_verified(length):
    logits = torch.zeros(1, 6, 12)
    for node, token in enumerate([1, 3, 0, 5, 0, 7]):
        logits[0, node, token] = 5.0
    verdict = verify(logits, tree()._replace(lengths=torch.tensor([length])), torch.tensor([4]), None)
    due = [0, *[node for node in (1, 3, 5) if node < length]]
    assert verdict.path[0, : verdict.count].tolist() == due


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_shortened_chain_is_judged_as_a_chain_of_that_length(length, block):
    generator = torch.Generator().manual_seed(3)
    rows = SamplingRows(torch.ones(64), torch.zeros(64).long(), torch.ones(64), torch.arange(64))
    p, q = (torch.rand(64, 4, 9, generator=generator) for _ in range(2))
    q = q[:, 1:] / q[:, 1:].sum(2, keepdim=True)
    whole = chain(torch.randint(9, (64, 4), generator=generator))._replace(q=q)
    rule = "block" if block else "reject"
    starts = torch.arange(64) + 5
    got = verify(p, whole._replace(lengths=torch.full((64,), length)), starts, rows, rule=rule)
    assert got.count.max() == length
    if length == 1:
        wanted = verify(p, whole._replace(q=torch.zeros_like(q)), starts, rows, rule=rule)
    else:
        narrow = chain(whole.tokens[:, :length])._replace(q=q[:, : length - 1])
        wanted = verify(p[:, :length], narrow, starts, rows, rule=rule)
    assert got.count.tolist() == wanted.count.tolist()
    pairs = zip(got.tokens.tolist(), wanted.tokens.tolist(), got.count.tolist(), strict=True)
    assert all(mine[:count] == theirs[:count] for mine, theirs, count in pairs)


def test_confidence_falls_along_a_row():
    sure = torch.tensor([[0.9, 0.6, 0.95], [0.4, 1.0, 1.0], [0.8, 0.7, 0.5]])
    assert confident_nodes(sure, 0.5).tolist() == [4, 1, 3]


def test_nothing_past_a_row_is_written_or_read():
    table = SlotTable(3, 16, 1, CPU, stamps=False)
    table.slots[1:] = torch.arange(32).view(2, 16) + 1
    relay = Relay(3, (), CPU)
    relay.publish(torch.tensor([1, 2]), torch.tensor([3, 6]), torch.zeros(2, 1).long())
    batch = StepBatch.round(torch.tensor([1, 2]), torch.zeros(2).long(), 4, 16, relay, table)
    batch.shorten(torch.tensor([2, 4]))
    assert batch.positions.tolist() == [[3, 4, 3, 3], [6, 7, 8, 9]]
    assert batch.write.tolist() == [[4, 5, 0, 0], [23, 24, 25, 26]]
    positions, write, bias = batch.causal(4, torch.float32)
    assert torch.equal(bias[0, 0, 2], bias[0, 0, 0]) and (bias[0, 0, 2] == 0).sum() == 4
    assert positions is batch.positions and write is batch.write


@pytest.mark.parametrize("timing", ["v1", "v2"])
@pytest.mark.parametrize(
    ("algorithm", "topk", "threshold"), [("EAGLE3", 4, 0.0), ("EAGLE3", 1, 0.5), ("DFLASH", 1, 0.5)]
)
def test_the_text_is_the_same_and_nothing_is_emitted_past_its_length(algorithm, topk, threshold, timing):
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True, temperature=t) for n, t in ((1, 0), (9, 0), (24, 0.9))]
    shape = {} if algorithm == "DFLASH" else {"speculative_num_steps": 3, "speculative_eagle_topk": topk}
    shape |= {"spec_version": timing}
    ragged = {"speculative_ragged_verify": True, "speculative_confidence_threshold": threshold}
    whole = start(algorithm, "match", **shape).generate(PROMPTS, params)
    one = start(algorithm, "match", **shape, **ragged)
    short = one.generate(PROMPTS, params)
    assert [output.output_ids for output in short] == [output.output_ids for output in whole]
    assert [1 + sum(output.accept_lengths) for output in short] == [1, 9, 24]
    assert one.counters["finish.overshoot"] == 0 < one.counters["spec.shortened"]
    left = 23
    for accepted, width in zip(short[2].accept_lengths, short[2].round_widths, strict=True):
        assert accepted <= left and (topk > 1 or width <= left)
        left -= accepted
    verified = short[2].meta_info["spec_verified_drafts_histogram"]
    assert sum(verified) == len(short[2].round_widths) and len(verified) == max(short[2].round_widths)
    assert short[2].meta_info["spec_num_proposed_drafts"] == sum(short[2].round_widths) - len(short[2].round_widths)
    assert not short[0].accept_lengths
