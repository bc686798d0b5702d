"""Asynchronous host-to-device copies of small integer and float lists, and declared waits for a tensor."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import Tensor


def integers(numbers: Iterable[int], device: torch.device) -> Tensor:
    """Numbers, at least one -> int64 [n]. Through a buffer: torch.tensor iterates over the numbers twice."""
    buffer = torch.frombuffer(array("q", numbers), dtype=torch.int64)
    return sent(buffer, device)


def floats(numbers: Iterable[float], device: torch.device) -> Tensor:
    """Numbers, at least one -> float32 [n]."""
    buffer = torch.frombuffer(array("f", numbers), dtype=torch.float32)
    return sent(buffer, device)


def sent(buffer: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; itself on a CPU."""
    if device.type == "cpu":
        return buffer
    # A copy from pageable memory synchronises; torch keeps pinned memory until the copy has completed.
    return buffer.pin_memory().to(device, non_blocking=True)


def received(tensor: Tensor) -> Tensor:
    """A tensor on the host, after a wait for it that a step declares and the synchronisation count leaves out."""
    if tensor.device.type == "cpu":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return there
