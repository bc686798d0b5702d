"""A GPU without Triton names the extra that brings it."""

import sys

import pytest

from specmatrix.errors import ConfigError
from specmatrix.kernels import backend, tree_layout


def test_without_triton_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "specmatrix.kernels.tree_layout.triton", raising=False)
    backend.triton_module.cache_clear()  # another test of this process may have loaded the module
    with pytest.raises(ConfigError, match=r"requires triton, .*extra `kernels`"):
        backend.triton_module(tree_layout.__name__)
