"""Buffers that the layers share in one forward, with each operation's views created once per shape.

On a CPU a small model spends more time on creating views and allocating than on arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.models.config import ModelConfig
from specmatrix.kernels.fused_linear import PART

KEPT_SHAPES = 32
KEPT_ROWS = 256


class Workspace(NamedTuple):
    """For B requests of W tokens in R = B * W rows.

    qkv [R, (heads + 2 * kv_heads) * head_dim]; its views: heads [R, heads + kv_heads, head_dim], which are rotated, the
    same as complex numbers rotated [R, heads + kv_heads, head_dim / 2] (float32 only), q [B, W, heads, head_dim] and
    kv [B * W, 2 * kv_heads * head_dim]. gate_up [R, 2 * inner], halves gate and up. scaled [R, hidden] and
    partial_sumsq float32 [R, parts]: the norm between attention and gates, see `kernels.fused_linear`.
    """

    batch: int
    width: int
    qkv: Tensor
    heads: Tensor
    rotated: Tensor | None
    q: Tensor
    kv: Tensor
    gate_up: Tensor
    gate: Tensor
    up: Tensor
    scaled: Tensor
    partial_sumsq: Tensor


class Workspaces:
    """The workspaces of one model; a few small shapes are cached, larger ones created anew."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._kept: OrderedDict[tuple[int, int], Workspace] = OrderedDict()

    def of(self, batch: int, width: int) -> Workspace:
        """The workspace of a shape; valid until the next forward of the same shape.

        On a GPU each forward has its own, because a graph needs the memory that it was captured with.
        """
        workspace = self._kept.get((batch, width))
        if workspace is None:
            # Created as ordinary tensors, so that a model can be called inside and outside of inference mode.
            with torch.inference_mode(False):
                workspace = self._make(batch, width)
            if batch * width <= KEPT_ROWS and self._device.type == "cpu":
                self._kept[batch, width] = workspace
                if len(self._kept) > KEPT_SHAPES:
                    self._kept.popitem(last=False)
        return workspace

    def _make(self, batch: int, width: int) -> Workspace:
        c, d = self._config, self._config.head_dim
        rows = batch * width
        queries, keys = c.num_heads * d, c.num_kv_heads * d
        qkv = torch.empty(rows, queries + 2 * keys, dtype=self._dtype, device=self._device)
        gate_up = torch.empty(rows, 2 * c.intermediate_size, dtype=self._dtype, device=self._device)
        heads = qkv[:, : queries + keys].view(rows, -1, d)
        rotated = None
        if self._dtype is torch.float32:
            rotated = torch.view_as_complex(heads.view(rows, -1, d // 2, 2))
        return Workspace(
            batch=batch,
            width=width,
            qkv=qkv,
            heads=heads,
            rotated=rotated,
            q=qkv[:, :queries].view(batch, width, c.num_heads, d),
            kv=qkv[:, queries:],
            gate_up=gate_up,
            gate=gate_up[:, : c.intermediate_size],
            up=gate_up[:, c.intermediate_size :],
            scaled=torch.empty(rows, c.hidden_size, dtype=self._dtype, device=self._device),
            partial_sumsq=torch.empty(rows, -(-c.hidden_size // PART), device=self._device),
        )
