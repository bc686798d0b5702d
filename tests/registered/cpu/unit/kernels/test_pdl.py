"""Where programmatic dependent launch is used, and with which arguments."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import specmatrix.kernels
from specmatrix.kernels.pdl import SHARED_MEMORY, launch, supports_pdl


@pytest.fixture
def asked(monkeypatch):
    """Whether PDL is used on a chip of this compute capability and shared memory per program."""

    def requests(major, room, hip=None):
        chip = SimpleNamespace(major=major, shared_memory_per_block_optin=room)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
        monkeypatch.setattr(torch.version, "hip", hip)
        supports_pdl.cache_clear()
        return supports_pdl(torch.device("cuda", 0))

    yield requests
    supports_pdl.cache_clear()


def test_chips_from_hopper_on_begin_early_if_their_programs_have_room(asked):
    assert asked(9, SHARED_MEMORY) and asked(10, 227 * 1024)
    assert not asked(8, 163 * 1024)
    assert not asked(12, SHARED_MEMORY - 1)
    assert not asked(9, SHARED_MEMORY, hip="6.4")


def test_a_cpu_launches_as_usual():
    assert launch(torch.zeros(1)) == {"PDL": False}


TOUCHES = {"load", "store", "atomic_add", "atomic_cas", "atomic_max"}


@pytest.mark.parametrize(
    "file", sorted(Path(specmatrix.kernels.__file__).parent.glob("*/triton.py")), ids=lambda f: f.parent.name
)
def test_what_begins_early_waits_before_it_touches_memory(file):
    """In the order of the source; what a kernel calls of its own may touch memory too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    launches = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript)]
    assert launches
    for call in launches:
        kernel = known[call.func.value.id]
        early = "PDL" in [argument.arg for argument in kernel.args.args]
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
