"""The laws of `kernels.check` as a detector of faults in kernels.

On a CPU Triton's interpreter runs the small cases. On a GPU all cases run compiled: the large ones, whose offsets
exceed int32, the medium ones, which take long enough to show a kernel that does not wait for its predecessor, and the
small ones also behind a kernel that writes their arguments late. An illegal memory access on a GPU counts as a broken
law, not as a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Final

from specmatrix.errors import ConfigError, KernelError, shown
from specmatrix.matrix.cells.tiers import tier as find_tier

DETECTOR: Final = "kernels"
PREFIX: Final = "kernel:"
# Triton or the next torch call reports it as a RuntimeError with this text.
ILLEGAL_ACCESS: Final = "illegal memory access"


def check_operations(names: Sequence[str], tier: str) -> Iterator[dict[str, Any]]:
    """One trial record per operation (named with PREFIX). ConfigError if one is unknown."""
    for name in names:
        yield _check(name.removeprefix(PREFIX), bool(find_tier(tier).gpus))


def _check(name: str, gpu: bool) -> dict[str, Any]:
    start = perf_counter()
    state, message = "PASS", ""
    if find_spec("triton") is None:
        state, message = "NOT MEASURED", "checking kernels needs triton; install specmatrix with its extra `kernels`"
    else:
        try:
            _check_laws(name, gpu)
        except KernelError as broken:
            state, message = "FAIL", str(broken)
        except RuntimeError as broken:
            words = " ".join(str(broken).split())
            if ILLEGAL_ACCESS not in words:
                raise
            state, message = "FAIL", f"{name}: {words}"
    seconds = perf_counter() - start
    return {"cell": PREFIX + name, "gates": {DETECTOR: [state, message]}, "error": None, "seconds": seconds}


def _check_laws(name: str, gpu: bool) -> None:
    from specmatrix.kernels import check
    from specmatrix.kernels.backend import interpreted
    from specmatrix.kernels.registry import KERNELS

    found = [kernel for kernel in KERNELS if kernel.name == name]
    if not found:
        raise ConfigError(f"operation {shown(name)} is unknown; it must be one of {', '.join(k.name for k in KERNELS)}")
    device = "cuda" if gpu else "cpu"
    with nullcontext() if gpu else interpreted():
        for case in found[0].cases:
            if case.size == "small":
                check.at_once(found[0], case, device)
                check.strided(found[0], case, device)
                if gpu:
                    check.late(found[0], case)
            elif gpu:
                check.poisoned(found[0], case, device)
