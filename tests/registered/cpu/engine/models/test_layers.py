"""Norm in both forms against its definition, rows that keep their bits, and the sharing of workspaces."""

from __future__ import annotations

import pytest
import torch

from engine.models.config import ModelConfig
from engine.models.layers import (
    FAST,
    ORDERED,
    Norm,
    add_linear,
    doubles,
    linear,
    products,
    stored,
    twin_rows,
)
from engine.models.rope import RopeConfig
from engine.models.workspace import KEPT_ROWS, KEPT_SHAPES, Workspaces

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=9,
    hidden_size=12,
    intermediate_size=7,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    norm_eps=1e-5,
    context_length=8,
    tie_embeddings=False,
    rope=RopeConfig(100.0),
)


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
    torch.testing.assert_close(linear(norm(x, weight), stored(norm.fold(projection, weight))), wanted @ projection.T)


def test_half_precision_norm_is_not_folded():
    x, weight = torch.randn(5, 12).bfloat16(), (torch.rand(12) + 0.5).bfloat16()
    norm = Norm(12, 1e-5, torch.bfloat16, CPU)
    assert not norm.folded
    assert norm.fold(x, weight) is x
    assert norm.scale(weight) is weight
    for got in (norm(x, weight), norm.whole(x, weight)):
        torch.testing.assert_close(got.float(), definition(x.float(), weight.float(), 1e-5), atol=0.03, rtol=0.02)


def test_add_linear_has_the_bits_of_linear_and_a_sum(rows_keep_their_bits):
    out, x, weight = torch.randn(5, 8), torch.randn(5, 12), torch.randn(12, 8)
    wanted = out + linear(x, weight)
    add_linear(out, x, weight)
    if rows_keep_their_bits:
        assert torch.equal(out, wanted)
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize(("deterministic", "device"), [(True, "cpu"), (False, "cpu"), (True, "cuda"), (False, "cuda")])
def test_only_a_deterministic_cpu_doubles_lone_rows(deterministic, device):
    assert doubles(deterministic, torch.device(device)) is (deterministic and device == "cpu")


@pytest.mark.parametrize("form", [ORDERED, FAST], ids=["ordered", "fast"])
def test_both_kinds_of_products_are_products(form):
    assert products(form is ORDERED) is form
    out, x, weight = torch.randn(5, 8), torch.randn(5, 12), torch.randn(12, 8)
    torch.testing.assert_close(form.linear(x, weight), x @ weight)
    into = torch.empty(5, 8)
    assert form.linear(x, weight, into).data_ptr() == into.data_ptr()
    wanted = out + x @ weight
    form.add(out, x, weight)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(form.each(x[None], weight[None])[0], x @ weight)


@pytest.mark.usefixtures("kept_bits")
def test_rows_keep_their_bits_at_the_sizes_of_the_zoo():
    """And a lone row on the doubled path has the bits of a batch."""
    for inner, outer in ((128, 256), (128, 768), (384, 128), (384, 96), (192, 160), (96, 320), (64, 768), (160, 64)):
        x, weight = torch.randn(64, inner), torch.randn(inner, outer)
        whole = linear(x, weight)
        assert torch.equal(linear(twin_rows(x[:1]), weight)[0], whole[0])
        for rows in range(2, 65):
            assert torch.equal(linear(x[:rows], weight), whole[:rows]), (inner, outer, rows)


def test_a_workspace_is_shared_by_calls_of_its_shape():
    spaces = Workspaces(CONFIG, torch.float32, CPU, double_lone=True)
    assert spaces.of(3, 2) is spaces.of(3, 2)
    assert spaces.of(3, 2) is not spaces.of(2, 3)
    assert spaces.of(KEPT_ROWS + 1, 1) is not spaces.of(KEPT_ROWS + 1, 1)


def test_few_workspaces_are_kept():
    spaces = Workspaces(CONFIG, torch.float32, CPU, double_lone=True)
    first = spaces.of(1, 1)
    for batch in range(2, KEPT_SHAPES + 2):
        spaces.of(batch, 1)
    assert spaces.of(1, 1) is not first


def test_views_of_a_workspace():
    space = Workspaces(CONFIG, torch.float32, CPU, double_lone=True).of(3, 2)
    assert (space.qkv.shape, space.gate_up.shape) == ((6, 48), (6, 14))
    space.qkv.copy_(torch.arange(6 * 48.0).view(6, 48))
    assert space.q.shape == (3, 2, 4, 6)
    assert space.q[2, 1, 0, 0] == space.qkv[5, 0]
    assert torch.equal(space.kv, space.qkv[:, 24:])
    assert space.turned.shape == (6, 6, 3)
    assert space.turned[5, 1, 0] == complex(space.qkv[5, 6], space.qkv[5, 7])
    space.gate_up.copy_(torch.arange(6 * 14.0).view(6, 14))
    assert torch.equal(space.gate, space.gate_up[:, :7])
    assert torch.equal(space.up, space.gate_up[:, 7:])


@pytest.mark.parametrize(("double", "rows"), [(True, 2), (False, 1)])
def test_a_lone_token_may_take_two_rows(double, rows):
    space = Workspaces(CONFIG, torch.bfloat16, CPU, double_lone=double).of(1, 1)
    assert space.qkv.shape[0] == space.gate.shape[0] == rows
    assert space.q.shape == (1, 1, 4, 6)
    assert space.kv.shape == (1, 24)
    assert space.turned is None


@torch.inference_mode()
def test_a_workspace_made_in_inference_mode_works_outside():
    spaces = Workspaces(CONFIG, torch.float32, CPU, double_lone=True)
    space = spaces.of(2, 1)
    with torch.inference_mode(False):
        assert spaces.of(2, 1).qkv.add_(1.0) is space.qkv
