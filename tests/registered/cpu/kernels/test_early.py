"""Where launches begin early, and what they are launched with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels.early import ROOM, launch, starts_early
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
    found = tile(columns, depth, 2, gated, behind=not gated, early=True)
    bytes_ = 2 * (found.stages - 1) * found.depth * (found.rows + found.columns * (2 if gated else 1))
    assert bytes_ <= ROOM and 2 * bytes_ > 227 * 1024


@pytest.mark.parametrize("gated", [False, True])
def test_the_order_of_sums_is_the_same_where_launches_begin_early(gated):
    for columns, depth in ((2048, 2048), (4096, 4096), (8192, 2048), (14336, 4096), (6144, 4096), (2048, 8192)):
        one, two = (tile(columns, depth, 2, gated, behind=True, early=early) for early in (False, True))
        assert one[:4] == two[:4]
