"""The gated delta rule on a CPU: a token's bits do not depend on how tokens are cut into calls, nor on the batch."""

from __future__ import annotations

import pytest
import torch

from specmatrix.errors import KernelError
from specmatrix.kernels.gated_delta import cases, gated_delta

(TREES,) = (case for case in cases.CASES if case.name == "trees")
ALL, WHOLE = [0, 1, 2], slice(0, 9)


def given():
    """Three requests of nine tokens, each of which writes a slot."""
    return list(TREES.arguments())


def run(arguments, rows, tokens, parents=None):
    """The results of some requests' tokens, which begin where `read` says."""
    u, b, a, *rest, read, write, _ = arguments
    part = (each[rows][:, tokens] for each in (u, b, a))
    return gated_delta(*part, *rest, read[rows], write[rows][:, tokens].contiguous(), parents)


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_bits_do_not_depend_on_chunks(width):
    whole, cut = given(), given()
    made, parts = run(whole, ALL, WHOLE), []
    for at in range(0, 9, width):
        parts.append(run(cut, ALL, slice(at, at + width)))
        cut[-3] = cut[-2][:, min(at + width, 9) - 1].contiguous()
    assert torch.equal(torch.cat(parts, 1), made) and torch.equal(cut[7][4:], whole[7][4:])


def test_bits_do_not_depend_on_other_requests_or_on_the_form_of_a_chain():
    made = run(given(), ALL, WHOLE)
    for rows in ([2], [1, 0]):
        assert torch.equal(run(given(), rows, WHOLE), made[rows])
    chain = torch.arange(-1, 8).expand(3, -1)
    assert torch.equal(run(given(), ALL, WHOLE, chain), made)


def test_bits_of_a_path_do_not_depend_on_its_tree():
    tree = torch.tensor([[-1, 0, 0, 2, 1, 3, 5, 4, 6]])
    made = run(given(), [1], WHOLE, tree)
    path = [0, 2, 3, 5, 6, 8]
    assert torch.equal(run(given(), [1], path), made[:, path])


def test_states_that_are_not_contiguous_are_refused():
    arguments = given()
    arguments[7] = arguments[7].transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(KernelError, match="gated_delta: states is not contiguous"):
        gated_delta(*arguments)
