"""Which form of an operation runs: Triton's on CUDA, torch's elsewhere. The public functions ask for each call."""

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


def select_backend(eager: ModuleType, tensor: Tensor) -> ModuleType:
    """The module that runs an operation on `tensor`; eager: the torch form, whose neighbour is Triton's."""
    return _neighbour(eager.__name__) if on_triton(tensor) else eager


def on_triton(tensor: Tensor) -> bool:
    """Whether operations on `tensor` take their Triton form."""
    return tensor.is_cuda or _everywhere


@lru_cache(maxsize=64)
def _neighbour(eager: str) -> ModuleType:
    # Late, as triton is absent where no GPU is, and reads its interpreter's flag when it is first imported.
    try:
        return import_module(eager.removesuffix("eager") + "triton")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            "triton is not installed and a GPU needs it; install specmatrix with its extra `kernels`"
        ) from None


def check_interpreter() -> None:
    """KernelError unless Triton's interpreter runs here: TRITON_INTERPRET=1 must be set before triton is first
    imported, and a small kernel must come out right. A test module calls it, so that a broken interpreter is one error.
    """
    if os.environ.get(INTERPRETER) != "1":
        raise KernelError(f"Triton's kernels run on a CPU with {INTERPRETER}=1 only, set before triton is imported")
    import_module("specmatrix.kernels.interpreter").prepare()


@contextmanager
def interpreted() -> Iterator[None]:
    """Every operation takes its Triton form, also on a CPU, where Triton's interpreter runs it.

    KernelError as of `check_interpreter`.
    """
    global _everywhere
    check_interpreter()
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before
