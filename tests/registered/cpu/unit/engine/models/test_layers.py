"""Norm in both forms against its definition, gates that keep their bits, and the sharing of workspaces."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.models import layers
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import KEPT_ROWS, KEPT_SHAPES, Norm, Workspaces, steady_silu, stored
from specmatrix.engine.models.rope import RopeConfig

CPU = torch.device("cpu")
# 9 tokens, 12 wide, feed-forward layers of 7; 4 heads of 6, and 2 key heads.
CONFIG = ModelConfig("LlamaForCausalLM", 9, 12, 7, 1, 4, 2, 6, 1e-5, 8, tie_embeddings=False, rope=RopeConfig(100.0))


def definition(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_the_folded_norm_is_the_norm(scale):
    """At a scale of 1e-4 eps is most of the root."""
    x, weight, projection = torch.randn(5, 12) * scale, torch.rand(12) + 0.5, torch.randn(4, 12)
    norm = Norm(12, 1e-6, torch.float32, CPU)
    assert norm.folded
    wanted = definition(x, weight, 1e-6)
    torch.testing.assert_close(norm.whole(x, norm.scale(weight)), wanted)
    torch.testing.assert_close(norm(x, weight) @ stored(norm.fold(projection, weight)), wanted @ projection.T)


def test_half_precision_norm_is_not_folded():
    x, weight = torch.randn(5, 12).bfloat16(), (torch.rand(12) + 0.5).bfloat16()
    norm = Norm(12, 1e-5, torch.bfloat16, CPU)
    assert not norm.folded
    assert norm.fold(x, weight) is x
    assert norm.scale(weight) is weight
    for got in (norm(x, weight), norm.whole(x, weight)):
        torch.testing.assert_close(got.float(), definition(x.float(), weight.float(), 1e-5), atol=0.03, rtol=0.02)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("steady", "usual"), [(steady_silu, torch.nn.functional.silu), (layers.steady_sigmoid, torch.sigmoid)]
)
def test_a_gates_bits_do_not_depend_on_the_address(steady, usual, threads):
    x = torch.randn(101, 770, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in (x, x[:, :385]):
            whole = steady(rows)
            torch.testing.assert_close(whole, usual(rows))
            for first, count in ((0, 1), (0, 2), (3, 7), (50, 51), (100, 1)):
                assert torch.equal(steady(rows[first : first + count]), whole[first : first + count])
                assert torch.equal(steady(rows[first : first + count].clone()), whole[first : first + count])
    finally:
        torch.set_num_threads(before)


def test_a_workspace_is_shared_by_calls_of_its_shape():
    spaces = Workspaces(CONFIG, torch.float32, CPU)
    assert spaces.of(3, 2) is spaces.of(3, 2)
    assert spaces.of(3, 2) is not spaces.of(2, 3)
    assert spaces.of(KEPT_ROWS + 1, 1) is not spaces.of(KEPT_ROWS + 1, 1)


def test_few_workspaces_are_kept():
    spaces = Workspaces(CONFIG, torch.float32, CPU)
    first = spaces.of(1, 1)
    for batch in range(2, KEPT_SHAPES + 2):
        spaces.of(batch, 1)
    assert spaces.of(1, 1) is not first


@torch.inference_mode()
def test_a_workspace_made_in_inference_mode_works_outside():
    spaces = Workspaces(CONFIG, torch.float32, CPU)
    space = spaces.of(2, 1)
    with torch.inference_mode(False):
        assert spaces.of(2, 1).qkv.add_(1.0) is space.qkv
