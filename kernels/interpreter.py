"""Patches to Triton's interpreter: loop bounds computed by the kernel, and products with a fixed summation order.

The interpreter multiplies with numpy, whose BLAS chooses its summation order by tile shape and machine; a test of a
kernel's own order (tiles, ranges, splits) must depend on that order alone.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from specmatrix.errors import KernelError


def ordered_dot(a: Any, b: Any, into: Any) -> Any:  # noqa: ANN401
    """a [..., M, K] @ b [..., K, N] + into, for numpy arrays, summed sequentially over K in into's dtype: an element's
    bits depend on its row and column alone."""
    a, b = a.astype(into.dtype), b.astype(into.dtype)
    total = into.copy()
    total.fill(0)
    for k in range(a.shape[-1]):
        total += a[..., k, None] * b[..., k, None, :]
    return total + into


def _create_dot(builder: Any, a: Any, b: Any, d: Any, *_: object) -> Any:  # noqa: ANN401
    return interpreter.TensorHandle(ordered_dot(a.data, b.data, d.data), d.dtype.scalar)


@cache
def prepare() -> None:
    """Patch the interpreter of this process. KernelError with the reason if it cannot run."""
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:  # noqa: ANN401
        patch_tensor(tensor, scope)
        # Triton 3.6 calls int() on a one-element array, which numpy rejects since 2.4.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = _create_dot
    x = torch.eye(16)
    try:
        _probe[(1,)](x, torch.tensor([3]))
    except Exception as error:
        raise KernelError(
            f"Triton {triton.__version__}'s interpreter fails with numpy {version('numpy')}: {error}"
        ) from error
    if not torch.equal(x, 4.0 * torch.eye(16)):
        raise KernelError(f"Triton {triton.__version__}'s interpreter gives wrong sums with numpy {version('numpy')}")


@triton.jit
def _probe(x, count):
    """Adds x @ x to x, `count` times."""
    at = x + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(at)
    total = tile
    for _ in range(0, tl.load(count)):
        total += tl.dot(tile, tile, input_precision="ieee")
    tl.store(at, total)
