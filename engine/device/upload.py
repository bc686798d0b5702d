"""Small lists of numbers on their way to the device."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import Tensor


def integers(numbers: Iterable[int], device: torch.device) -> Tensor:
    """Numbers, at least one -> int64 [n]. Through a buffer: torch.tensor looks at each number twice."""
    buffer = torch.frombuffer(array("q", numbers), dtype=torch.int64)
    return buffer if device.type == "cpu" else buffer.to(device)
