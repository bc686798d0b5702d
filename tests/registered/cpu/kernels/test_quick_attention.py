"""Which tile and split a step's attention takes where bits may depend on the step."""

from __future__ import annotations

import pytest

from specmatrix.kernels.paged_attention import triton as attention

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

WIDE = attention.Shape(32, 128, 128, 0, warps=4, stages=2)


@pytest.mark.parametrize(
    ("rows", "length", "pairs", "tile", "split"),
    [
        (4, 1280, 8, WIDE._replace(rows=16), 128),
        (32, 1280, 8, WIDE, 128),
        (4, 1280, 256, WIDE._replace(rows=16, keys=64, warps=2), 256),
        (17, 1280, 256, WIDE._replace(keys=64, warps=2), 256),
        (4, 8192, 8, WIDE._replace(rows=16, keys=64, warps=2), 256),
    ],
)
def test_few_requests_take_short_splits_and_many_small_tiles(rows, length, pairs, tile, split):
    assert attention.quick(WIDE, rows, length, pairs) == (tile, split)


def test_latent_heads_and_single_precision_keep_their_tile():
    for head_dim, value_dim, size, group in ((576, 512, 2, 128), (256, 256, 4, 1)):
        tile = attention.shape(head_dim, value_dim, size, group)
        assert attention.quick(tile, 1, 1280, 8) == (tile, attention.SPLIT)
