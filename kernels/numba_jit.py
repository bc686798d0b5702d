"""Loops that numba compiles for this machine's CPU; `backend.compiled_module` imports what uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit


def jit(
    signature: str | None = None, sums: bool = False, exact: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function at its first call, or immediately for a signature. Products and sums may be fused; with
    `sums`, sums along a vector may also be reordered, in a way that depends on its length only. With `exact`, neither:
    results have the same bits on every CPU."""

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        fast = set() if exact else {"contract", "nsz", "reassoc"} if sums else {"contract", "nsz"}
        loops = njit(nogil=True, error_model="numpy", fastmath=fast)(function)
        # Without a writable cache folder, each process compiles again.
        with suppress(RuntimeError):
            loops.enable_caching()
        if signature is not None:
            loops.compile(signature)
            loops.disable_compile()  # other types are an error
        return loops

    return compiled
