"""Keys and values of all layers in slots; who owns which page is the ledger's business."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.move_kv import move_kv
from kernels.store_kv import store_kv


class KVPool:
    """data [layers, pages * page_size, 2, kv_heads, head_dim]; slot = page * page_size + offset.

    `pages` counts page 0, which is padding and owned by nobody. All slots start as zeros, since a masked key must be
    finite. stamps: int64 [slots], what the engine wrote where (0 = nothing); None unless asked for.
    deterministic: steps over this pool attend in a way that keeps a query's bits independent of the rest of its step.
    rows[layer] [slots, 2 * kv_heads * head_dim] and heads[layer] [slots * 2 * kv_heads, head_dim] are views of data.
    """

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        stamps: bool = False,
        deterministic: bool = True,
    ) -> None:
        slots = pages * page_size
        self.page_size = page_size
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.deterministic = deterministic
        self.data = torch.zeros(layers, slots, 2, kv_heads, head_dim, dtype=dtype, device=device)
        self.rows = list(self.data.view(layers, slots, -1).unbind())
        self.heads = list(self.data.view(layers, -1, head_dim).unbind())
        self.stamps = torch.zeros(slots, dtype=torch.int64, device=device) if stamps else None

    def store(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """kv [M, 2 * kv_heads * head_dim] (key heads, then value heads) into slots [M] of one layer."""
        store_kv(self.rows[layer], slots, kv)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [M] to target [M] in all layers, all reads before all writes; stamps move along."""
        move_kv(self.data, source, target)
        if self.stamps is not None:
            move_kv(self.stamps[None], source, target)
