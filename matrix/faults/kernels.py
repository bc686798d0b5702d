"""The laws of `kernels.check` as a judge of faults: an operation keeps them all, or the fault in it is seen.

On a CPU Triton's interpreter runs the small cases. On a GPU they run compiled, with those whose offsets pass what an
int32 counts. Reading where nothing is, on a GPU, is a broken law and no crash: the definition reads nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Final

from specmatrix.errors import ConfigError, KernelError
from specmatrix.matrix.run.tiers import tier as find_tier

JUDGE: Final = "kernels"
PREFIX: Final = "kernel:"
# An address that is not there comes back as a RuntimeError, of Triton's or of torch's next call.
GONE: Final = "illegal memory access"


def judged(names: Sequence[str], tier: str) -> Iterator[dict[str, Any]]:
    """One line of a trial for each operation, named with its prefix. ConfigError if one is unknown."""
    for name in names:
        yield _judged(name.removeprefix(PREFIX), bool(find_tier(tier).gpus))


def _judged(name: str, gpu: bool) -> dict[str, Any]:
    start = perf_counter()
    state, message = "PASS", ""
    if find_spec("triton") is None:
        state, message = "NOT MEASURED", "the laws of kernels need triton; install specmatrix with its extra `kernels`"
    else:
        try:
            _keeps_the_laws(name, gpu)
        except KernelError as broken:
            state, message = "FAIL", str(broken)
        except RuntimeError as broken:
            words = " ".join(str(broken).split())
            if GONE not in words:
                raise
            state, message = "FAIL", f"{name}: {words}"
    seconds = perf_counter() - start
    return {"cell": PREFIX + name, "gates": {JUDGE: [state, message]}, "error": None, "seconds": seconds}


def _keeps_the_laws(name: str, gpu: bool) -> None:
    from specmatrix.kernels import check
    from specmatrix.kernels.backend import interpreted
    from specmatrix.kernels.registry import KERNELS

    found = [kernel for kernel in KERNELS if kernel.name == name]
    if not found:
        raise ConfigError(f"operation {name!r} is unknown; it must be one of {', '.join(k.name for k in KERNELS)}")
    device = "cuda" if gpu else "cpu"
    with nullcontext() if gpu else interpreted():
        for case in found[0].cases:
            if case.size == "small":
                check.at_once(found[0], case, device)
                check.strided(found[0], case, device)
            elif case.size == "large" and gpu:
                check.agreement(found[0], case, device)
