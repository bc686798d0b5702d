"""Programmatic dependent launch (PDL): a kernel starts while its predecessor still runs (CUDA C++ Programming Guide).

Every program of a PDL kernel waits before it reads or writes memory that another kernel touches; after the wait all
earlier kernels have completed, because the predecessor waited for its own. A kernel signals the point
from which its successor may start; third-party kernels never signal, so their successor starts at their end. A kernel
launched without PDL starts at its predecessor's end.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Shared memory per program, in bytes, that the kernels are tuned for on devices with PDL.
SHARED_MEMORY = 160 * 1024


@lru_cache(maxsize=16)
def supports_pdl(device: torch.device) -> bool:
    """Whether kernels on a device use PDL: on NVIDIA Hopper and later data-centre GPUs."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    chip = torch.cuda.get_device_properties(device)
    return bool(chip.major >= 9 and chip.shared_memory_per_block_optin >= SHARED_MEMORY)


def launch(tensor: Tensor) -> dict[str, bool]:
    """Launch arguments of a kernel with the flag PDL (PDL), for the device of `tensor`."""
    return {"PDL": True, "launch_pdl": True} if supports_pdl(tensor.device) else {"PDL": False}


@triton.jit
def signal(PDL: tl.constexpr):
    """Allow the next kernel to start once every program has reached this point."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until all earlier kernels have completed and their writes are visible."""
    if PDL:
        gdc_wait()


@triton.jit
def begin(PDL: tl.constexpr):
    """The prologue of a kernel with no work before its wait."""
    signal(PDL)
    wait(PDL)
