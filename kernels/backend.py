"""Backend dispatch, done on every call: an operation runs as a Triton kernel on CUDA tensors, elsewhere in torch
or, where calls cost most, as loops that numba compiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from torch import Tensor

from specmatrix.errors import ConfigError, KernelError

INTERPRETER = "TRITON_INTERPRET"
_everywhere = False


def on_triton(tensor: Tensor) -> bool:
    """Whether operations on `tensor` run as Triton kernels."""
    return tensor.is_cuda or _everywhere


@lru_cache(maxsize=64)
def triton_module(package: str) -> ModuleType:
    """The Triton forms of a package's operations. ConfigError without triton, which names the extra that brings it."""
    # Imported lazily: triton may be missing on CPU hosts, and it reads TRITON_INTERPRET at its first import.
    try:
        return import_module(f"{package}.triton")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            "running on a GPU requires triton, which is not installed; install specmatrix with the extra `kernels`"
        ) from None


@lru_cache(maxsize=64)
def compiled_module(package: str, users: str) -> ModuleType:
    """The loops of a package that numba compiles for a CPU. ConfigError without numba, which `users` require."""
    # Imported lazily: numba is slow to import, and compiles when it first runs on a machine.
    try:
        if import_module("numba").config.DISABLE_JIT:
            raise ConfigError(f"{users} on a CPU require numba's compiler; unset NUMBA_DISABLE_JIT")
        return import_module(f"{package}.compiled")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise ConfigError(
            f"{users} on a CPU require numba, which is not installed; run: pip install 'specmatrix[engine]'"
        ) from None


def check_interpreter() -> None:
    """KernelError unless Triton's interpreter works: TRITON_INTERPRET=1 must be set before triton is first imported,
    and a small kernel must give correct results. Test modules call it, so that a broken interpreter is a single error.
    """
    if os.environ.get(INTERPRETER) != "1":
        raise KernelError(f"Triton kernels run on a CPU only if {INTERPRETER}=1 is set before triton is imported")
    import_module("specmatrix.kernels.interpreter").prepare()


@contextmanager
def interpreted() -> Iterator[None]:
    """Run every operation as a Triton kernel, through Triton's interpreter on a CPU.

    KernelError as in `check_interpreter`.
    """
    global _everywhere
    check_interpreter()
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before
