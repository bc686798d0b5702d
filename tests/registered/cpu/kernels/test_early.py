"""Where launches begin early, and what they are launched with."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernels
from kernels.early import ROOM, launch, starts_early
from kernels.projection import cases
from kernels.projection import triton as projection
from kernels.projection.triton import tile

pytestmark = pytest.mark.register(est_seconds=3, tier="cpu", stage="pr")


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
        assert one.rows == {1: 16, 16: 16, 17: 32, 33: 64, 64: 64}[rows]


@pytest.mark.parametrize("rows", [17, 33, 64])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_tiles_of_more_rows_fit_into_shared_memory_and_fill_a_gpu(rows, gated, add):
    for columns, depth in (*SIZES, (4096, 14336), (64, 64)):
        for early, room in ((True, ROOM), (False, projection.ROOM_IN_TURN)):
            found = tile(rows, columns, depth, 2, gated, add, early)
            assert 2 * found.stages * found.depth * (found.rows + found.columns * (2 if gated else 1)) <= room
            assert found.stages >= 2
            tiles, ranges = -(-columns // found.columns), found.ranges
            if gated:
                assert ranges == 1
            else:
                assert tiles * ranges >= projection.PROGRAMS or depth < 2 * ranges * projection.SHORTEST
                assert ranges == 1 or tiles <= projection.TILES


def test_tiles_of_published_shapes_are_those_that_were_found():
    assert tile(32, 6144, 4096, 2, False, False, early=True) == projection.TALL[32, "heads"].wide
    assert tile(48, 8192, 2048, 2, True, False, early=True) == projection.TALL[64, "gate_up"].narrow
    assert tile(48, 2048, 8192, 2, False, True, early=True) == projection.TALL[64, "down"].narrow._replace(ranges=2)
    assert tile(48, 4096, 14336, 2, False, True, early=True) == projection.TALL[64, "down"].wide._replace(ranges=2)
    assert tile(32, 14336, 4096, 2, True, False, early=False) == projection.TALL[32, "gate_up"].wide._replace(stages=2)


def test_every_tile_of_more_rows_has_a_case():
    reached = set()
    for case in (*cases.CASES, *cases.SUNK_CASES, *cases.ONWARD_CASES):
        x, _, out, _, _, _, _, add, gated, *_ = case.arguments()
        if out.numel():
            reached.add(tile(*out.shape, x.shape[1], x.element_size(), gated, add, early=True)._replace(ranges=1))
    assert {one for tiles in projection.TALL.values() for one in tiles} <= reached


TOUCHES = {"load", "store", "atomic_add", "atomic_cas", "atomic_max"}


@pytest.mark.parametrize("file", sorted(Path(kernels.__file__).parent.glob("*/triton.py")), ids=lambda f: f.parent.name)
def test_what_begins_early_waits_before_it_touches_memory(file):
    """In the order of the source; what a kernel calls of its own may touch memory too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    launches = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript)]
    assert launches
    for call in launches:
        kernel = known[call.func.value.id]
        early = "EARLY" in [argument.arg for argument in kernel.args.args]
        handed = [k.value for k in call.keywords if k.arg is None and isinstance(k.value, ast.Call)]
        assert early == any(one.func.id == "launch" for one in handed), kernel.name
        names = [name_of(n) for n in sorted(calls_in(kernel), key=lambda n: (n.lineno, n.col_offset))]
        if early:
            first = next(at for at, name in enumerate(names) if name in TOUCHES or name in known)
            assert {"wait", "begin"} & set(names[:first]), kernel.name


def calls_in(function):
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def name_of(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
