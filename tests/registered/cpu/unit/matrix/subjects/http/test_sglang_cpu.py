"""SGLang's operations in torch give trees and accept drafts as this engine's kernels do."""

from __future__ import annotations

from runpy import run_path

import pytest
import torch

from specmatrix import HOME
from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.select_tree.cases import CASES
from specmatrix.kernels.tree_layout import tree_layout


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_a_tree_and_its_accepted_drafts_are_the_engines(case):
    ops = run_path(str(HOME / "examples" / "sglang_cpu.py"))
    scores, above, nodes, topk = case.make(torch.Generator().manual_seed(3))
    chosen, parents = select_tree(scores, above, nodes, topk)
    (depths, ancestors), rows = tree_layout(parents), len(scores)
    mask, places, links = ancestors.flatten() ^ True, depths.flatten() * 0, torch.full((3, rows, nodes), -1)
    ops["build_tree"](above, chosen, torch.arange(rows), mask, places, *links, topk, 9, nodes, 1)
    assert torch.equal(places.view(rows, nodes), torch.arange(rows)[:, None] + depths)
    assert torch.equal(mask.view_as(ancestors), ancestors)
    best = torch.arange(nodes).expand(rows, -1) + 1  # the target likes the next node, which is seldom a child
    given, accepted, hits = places.int(), torch.full_like(chosen, -1), torch.zeros(rows).long()
    ops["verify_greedy"](given, accepted, hits, best - 1, *links, best)
    assert torch.equal(hits + 1, accept_path(best - 1, parents, best, int(depths.max()))[1].clamp(max=nodes - 1))
