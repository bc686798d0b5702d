"""Launches that begin while the kernel in front still runs (programmatic dependent launch, CUDA C++ Programming Guide).

A kernel that is so launched waits, in each of its programs, before it reads or writes anything that another kernel
touches: then all in front of it have ended, those of which its neighbour waited for too. What it may do before is to
count its indices and to have weights brought into the cache, which reads nothing: whoever wrote them, and when, makes
no difference. A kernel signals from where on the next one may begin so; kernels of others never do, and the next one
begins at their end. One that follows such a kernel and is launched as usual begins at its end.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Bytes of shared memory that a program may have where launches begin early; the kernels are tuned for it there.
ROOM = 160 * 1024


@lru_cache(maxsize=16)
def starts_early(device: torch.device) -> bool:
    """Whether launches on a device begin early: on NVIDIA's Hopper and the large chips after it."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    chip = torch.cuda.get_device_properties(device)
    return bool(chip.major >= 9 and chip.shared_memory_per_block_optin >= ROOM)


def launch(tensor: Tensor) -> dict[str, bool]:
    """What a kernel with a flag EARLY is launched with, where `tensor` lies."""
    return {"EARLY": True, "launch_pdl": True} if starts_early(tensor.device) else {"EARLY": False}


@triton.jit
def signal(EARLY: tl.constexpr):
    """From here on the next kernel may begin, once every program has come so far."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until all kernels in front have ended and what they wrote is seen."""
    if EARLY:
        gdc_wait()


@triton.jit
def begin(EARLY: tl.constexpr):
    """The beginning of a kernel that has nothing to do before it waits."""
    signal(EARLY)
    wait(EARLY)


@triton.jit
def fetch(pointers):
    """Bring what they point to into the cache that all programs share."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )
