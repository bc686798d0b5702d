"""Every tile of more rows on small cases, in Triton's interpreter: by themselves such cases are too narrow for most."""

from __future__ import annotations

import pytest
import torch

from kernels import check
from kernels.backend import interpreted
from kernels.projection import triton as projection
from kernels.registry import KERNELS

pytestmark = pytest.mark.register(est_seconds=8, tier="cpu", stage="pr")

# What is projected, the operation, and its case: with all that stands around such a projection in a layer.
PLACES = {
    "heads": ("projection into a pool", "20 x 70 x 84 bfloat16 normed turn"),
    "attended": ("projection before a norm", "19 x 64 x 70 bfloat16 add"),
    "gate_up": ("projection", "18 x 130 x 70 float16 normed gated"),
    "down": ("projection before a norm", "23 x 1030 x 70 bfloat16 add"),
}
# Sums of gates are not cut into ranges of K.
TILES = [
    pytest.param(what, tile._replace(ranges=ranges), id=f"{what} {tile.rows}x{tile.columns}x{tile.depth} in {ranges}")
    for (_, what), tiles in projection.TALL.items()
    for tile in dict.fromkeys(one._replace(ahead=0, late=False) for one in tiles)
    for ranges in ((1,) if what == "gate_up" else (1, 2))
]


@pytest.mark.parametrize(("what", "tile"), TILES)
def test_it_gives_the_definition(monkeypatch, what, tile):
    name, of = PLACES[what]
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    case = next(case for case in kernel.cases if case.name == of)
    monkeypatch.setattr(projection, "tile", lambda *_: tile)
    torch.set_num_threads(1)
    with interpreted():
        check.at_once(kernel, case)
