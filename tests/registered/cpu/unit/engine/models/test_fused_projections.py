"""Few rows in half precision: a layer's projections fused with neighbouring operations, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.models import layers
from specmatrix.engine.models.layers import FUSED_ROWS, Norm
from specmatrix.engine.models.loader import load_target
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.fused_linear import MAX_ROWS, fused_linear
from specmatrix.matrix.zoo.registry import resolve_path

check_interpreter()


def outputs(model, paged):
    """Logits of a chunk and of the step after it, and all keys and values that they store."""
    requests = paged(model, 2, 32)
    tokens = torch.arange(20).view(2, 10) * 7 + 3
    with interpreted(), torch.inference_mode():
        chunk = requests.run(tokens, [0, 0])
        step = requests.run(tokens[:, :1], [10, 10])
    return torch.cat((chunk, step), 1), requests.pool.data


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama-mini", "qwen3-mini"])
def test_fused_projections_are_the_projections(name, paged, monkeypatch):
    """qwen3-mini norms its heads, so that its keys are stored by themselves, in two pools."""
    model = load_target(resolve_path(name), "cpu", torch.float16, deterministic=False)
    model.norm.eps = 0.5  # as large as what it is added to, so that it shows
    fused, some = model.norm.uses_fused_linear, torch.zeros(MAX_ROWS + 1, 1)
    assert fused(some[:FUSED_ROWS]) is False
    with interpreted():
        assert fused(some[:FUSED_ROWS]) and fused(some[:MAX_ROWS], MAX_ROWS)
        assert not fused(some[: FUSED_ROWS + 1]) and not fused(some, MAX_ROWS)
    monkeypatch.setattr(model.norm, "uses_fused_linear", lambda *_: False)
    expected, wanted = outputs(model, paged)
    ran = set[bool]()
    monkeypatch.setattr(layers, "fused_linear", lambda *given: (ran.add(given[3].gated), fused_linear(*given))[1])
    for form, kinds in ((fused, {True, False}), (lambda _, most=FUSED_ROWS: most == MAX_ROWS, {True})):
        ran.clear()
        monkeypatch.setattr(model.norm, "uses_fused_linear", form)
        logits, cache = outputs(model, paged)
        assert ran == kinds
        assert (logits - expected).abs().max() < 0.02 * expected.abs().max()
        assert (cache - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize(
    ("dtype", "deterministic", "ranks", "fused"),
    [
        (torch.float16, False, 1, True),
        (torch.float16, True, 1, False),
        (torch.float32, False, 1, False),
        (torch.float16, False, 2, False),  # their contributions are summed over all ranks first
    ],
)
def test_one_rank_in_half_precision_that_is_not_deterministic_uses_fused_linear(dtype, deterministic, ranks, fused):
    with interpreted():
        norm = Norm(64, 1e-5, dtype, torch.device("cpu"), deterministic=deterministic, ranks=Ranks(0, ranks))
        assert norm.uses_fused_linear(torch.zeros(1, 64)) is fused
