"""One drafting and verification round worked out by hand, through all four tree operations.

k = 2, three steps, six nodes. Step 0: A .6, B .29. A -> C .5, D .3; B -> E .9, F .05; C and E live on.
C -> G .8, H .1; E -> I .5, J .4.
"""

from __future__ import annotations

import torch

from specmatrix.kernels.accept_path import accept_path
from specmatrix.kernels.expand_topk import expand_topk
from specmatrix.kernels.select_tree import select_tree
from specmatrix.kernels.tree_layout import tree_layout

A, B, C, E, G = 0, 1, 2, 4, 6  # candidate ids; D F H I J are 3 5 7 8 9
X = 99


def test_the_round():
    first = torch.tensor([[0.6, 0.29]])
    grown, live, chosen = expand_topk(first, torch.tensor([[[0.5, 0.3], [0.9, 0.05]]]))
    torch.testing.assert_close(grown, torch.tensor([[0.30, 0.18, 0.261, 0.0145]]))
    assert chosen.tolist() == [[0, 2]]
    last, _, _ = expand_topk(live, torch.tensor([[[0.8, 0.1], [0.5, 0.4]]]))
    torch.testing.assert_close(last, torch.tensor([[0.24, 0.03, 0.1305, 0.1044]]))

    parent_list = torch.cat((torch.tensor([[-1, 0, 1]]), chosen + 2), 1)
    assert parent_list.tolist() == [[-1, 0, 1, 2, 4]]
    ids, parents = select_tree(torch.cat((first, grown, last), 1), parent_list, nodes=6, topk=2)
    assert ids.tolist() == [[A, B, C, E, G]]
    assert parents.tolist() == [[-1, 0, 0, 1, 2, 3]]

    depths, ancestors = tree_layout(parents)
    assert (depths + 5).tolist() == [[5, 6, 6, 7, 7, 8]]
    rows = ["100000", "110000", "101000", "110100", "101010", "110101"]
    assert ["".join(str(int(seen)) for seen in row) for row in ancestors[0]] == rows
    assert (ancestors * 2 ** torch.arange(6)).sum(2).tolist() == [[1, 3, 5, 11, 21, 43]]

    tokens = torch.cat((torch.tensor([[X]]), ids), 1)
    emit = torch.tensor([[B, X, E, X, X, X]])
    path, count = accept_path(tokens, parents, emit, depth=3)
    assert path.tolist() == [[0, 2, 4, 3]]
    assert count.tolist() == [3]
    assert emit.gather(1, path)[0, :3].tolist() == [B, E, X]


def test_a_parent_is_selected_with_its_child_when_scores_tie():
    """Probabilities of exactly 1 give a child its parent's score; the lower id, the parent's, comes first."""
    first = torch.tensor([[1.0, 0.0]])
    grown, live, chosen = expand_topk(first, torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    last, _, _ = expand_topk(live, torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    parent_list = torch.cat((torch.tensor([[-1, 0, 1]]), chosen + 2), 1)
    ids, parents = select_tree(torch.cat((first, grown, last), 1), parent_list, nodes=4, topk=2)
    assert ids.tolist() == [[0, 2, 6]]
    assert parents.tolist() == [[-1, 0, 1, 2]]
