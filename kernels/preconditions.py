"""Argument checks of the public operations, and their error messages.

On the hot path an operation compares shapes only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specmatrix.errors import KernelError


def shape_error(op: str, name: str, tensor: Tensor, wanted: Sequence[int | str]) -> KernelError:
    """The error for a tensor of the wrong shape; the caller compares and raises."""
    return KernelError(f"{op}: {name} has shape {list(tensor.shape)}, must be [{', '.join(map(str, wanted))}]")


def shapes(op: str, **tensors: tuple[Tensor, Sequence[int]]) -> None:
    """KernelError unless every tensor has the shape beside it."""
    for name, (tensor, wanted) in tensors.items():
        if tensor.shape != wanted:
            raise shape_error(op, name, tensor, wanted)


def dtype(op: str, allowed: Sequence[torch.dtype], **tensors: Tensor) -> None:
    """KernelError unless every tensor has one of the allowed dtypes."""
    for name, tensor in tensors.items():
        if tensor.dtype not in allowed:
            words = ", ".join(str(d).removeprefix("torch.") for d in allowed)
            raise KernelError(f"{op}: {name} is {str(tensor.dtype).removeprefix('torch.')}, must be {words}")


def contiguous(op: str, **tensors: Tensor) -> None:
    """KernelError unless every tensor is contiguous."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelError(f"{op}: {name} is not contiguous (strides {list(tensor.stride())})")


def dense(op: str, **tensors: Tensor) -> None:
    """KernelError unless each tensor has stride 1 along its last axis; other strides are free."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise KernelError(f"{op}: {name} is not contiguous along its last axis (strides {list(tensor.stride())})")
