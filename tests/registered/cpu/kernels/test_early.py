"""Where launches begin early, and what they are launched with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels.early import ROOM, launch, starts_early
from kernels.projection import triton as projection
from kernels.projection.triton import tile

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


@pytest.fixture
def asked(monkeypatch):
    """Whether launches begin early on a chip of this compute capability and so much shared memory for a program."""

    def asks(major, room, hip=None):
        chip = SimpleNamespace(major=major, shared_memory_per_block_optin=room)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
        monkeypatch.setattr(torch.version, "hip", hip)
        starts_early.cache_clear()
        return starts_early(torch.device("cuda", 0))

    yield asks
    starts_early.cache_clear()


def test_chips_from_hopper_on_begin_early_if_their_programs_have_room(asked):
    assert asked(9, ROOM) and asked(10, 227 * 1024)
    assert not asked(8, 163 * 1024)
    assert not asked(12, ROOM - 1)
    assert not asked(9, ROOM, hip="6.4")


def test_a_cpu_launches_as_usual():
    assert launch(torch.zeros(1)) == {"EARLY": False}


@pytest.mark.parametrize("sizes", [(2048, 2048, False), (4096, 4096, False), (8192, 2048, True)])
def test_tiles_that_wait_alone_fit_into_shared_memory_once(sizes):
    columns, depth, gated = sizes
    found = tile(16, columns, depth, 2, gated, add=not gated, early=True)
    bytes_ = 2 * (found.stages - 1) * found.depth * (found.rows + found.columns * (2 if gated else 1))
    assert bytes_ <= ROOM and 2 * bytes_ > 227 * 1024


SIZES = ((2048, 2048), (4096, 4096), (8192, 2048), (14336, 4096), (6144, 4096), (3072, 2048), (2048, 8192))


@pytest.mark.parametrize("rows", [1, 16, 17, 33, 64])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_the_order_of_sums_is_the_same_where_launches_begin_early(rows, gated, add):
    for columns, depth in SIZES:
        one, two = (tile(rows, columns, depth, 2, gated, add, early) for early in (False, True))
        assert one[:4] == two[:4]
        assert one.rows in (rows, 16, 32, 64) and one.rows >= rows


@pytest.mark.parametrize("rows", [17, 33, 64])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_tiles_of_more_rows_fit_into_shared_memory_and_fill_a_gpu(rows, gated, add):
    for columns, depth in (*SIZES, (4096, 14336), (64, 64)):
        for early, room in ((True, ROOM), (False, projection.ROOM)):
            found = tile(rows, columns, depth, 2, gated, add, early)
            assert 2 * found.stages * found.depth * (found.rows + found.columns * (2 if gated else 1)) <= room
            assert found.stages >= 2
            tiles, ranges = -(-columns // found.columns), found.ranges
            if gated:
                assert ranges == 1
            else:
                assert tiles * ranges >= projection.PROGRAMS or depth < 2 * ranges * projection.SHORTEST
                assert ranges == 1 or tiles <= projection.TILES
