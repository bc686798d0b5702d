"""The references of gather and scatter."""

import torch
from torch import Tensor


def gather(buffer: Tensor, rows: Tensor) -> Tensor:
    out = torch.empty(len(rows), *buffer.shape[1:], dtype=buffer.dtype)
    for place, row in enumerate(rows.tolist()):
        out[place] = buffer[row]
    return out


def scatter(buffer: Tensor, rows: Tensor, values: Tensor) -> None:
    for place, row in enumerate(rows.tolist()):
        buffer[row] = values[place]
