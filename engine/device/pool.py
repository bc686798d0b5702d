"""Keys and values of all layers in slots; the ledger decides which account owns which page."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specmatrix.kernels.compact_kv import compact_kv
from specmatrix.kernels.store_kv import store_kv

RECURRENT: Final = -1  # instead of a window's size: the layer has a recurrent state and no KV


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The contents of a slot, per layer.

    value_dim: None if a slot has a plane of keys and a plane of values, kv_heads * head_dim numbers each; else one
    plane holds both, and a head's values are the first value_dim of its head_dim numbers.
    scale: the scale of attention scores; None for head_dim ** -0.5.
    """

    layers: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    scale: float | None = None

    @property
    def planes(self) -> int:
        """Planes of kv_heads * head_dim numbers in a slot."""
        return 2 if self.value_dim is None else 1

    @property
    def factor(self) -> float:
        """The scale of attention scores."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The contents of a state's slot, per layer: the convolution's last inputs, `inputs` rows of `channels` numbers in
    the model's dtype, and float32 [heads, key_dim, value_dim]."""

    layers: int
    channels: int
    inputs: int
    heads: int
    key_dim: int
    value_dim: int

    def bytes(self, itemsize: int) -> int:
        """The size of a slot in all layers. itemsize: of the model's dtype."""
        return self.layers * (self.channels * self.inputs * itemsize + 4 * self.heads * self.key_dim * self.value_dim)


class StatePool:
    """Recurrent states of all layers by slot: windows [L, S, inputs, channels], states [L, S, heads, key_dim,
    value_dim]. Slot 0 is never written: a request begins with its zeros. stamps: as in a KVPool, per slot."""

    def __init__(
        self, layout: StateLayout, slots: int, dtype: torch.dtype, device: torch.device | str, stamps: bool = False
    ) -> None:
        place, at = torch.device(device), layout
        self.windows = _zeros((at.layers, slots, at.inputs, at.channels), dtype, place)
        self.states = _zeros((at.layers, slots, at.heads, at.key_dim, at.value_dim), torch.float32, place)
        self.stamps = torch.zeros(slots, dtype=torch.int64, device=device) if stamps else None

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [M] to target [M] in all layers, and their stamps."""
        for data in (self.windows, self.states, *(() if self.stamps is None else (self.stamps[None],))):
            compact_kv(data, source, target)


class KVPool:
    """data [layers, pages * page_size + spare, planes, kv_heads, head_dim]; slot = page * page_size + offset.

    `pages` counts page 0, which is padding and has no owner. All slots start as zeros, since a masked key must be
    finite. stamps: int64 [slots], what the engine wrote where (0 = nothing); None unless requested.
    deterministic: attention over this pool keeps a query's bits independent of the other tokens in its step.
    spare: slots after all pages, for drafts during a round; int64 [spare] slot indices.
    rows[layer] [slots, planes * kv_heads * head_dim] and heads[layer] [slots * planes * kv_heads, head_dim] are views
    of data.
    """

    def __init__(
        self,
        layout: KVLayout,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        stamps: bool = False,
        deterministic: bool = True,
        spare: int = 0,
    ) -> None:
        slots = pages * page_size
        self.layout, self.page_size = layout, page_size
        self.deterministic = deterministic
        self.spare = torch.arange(slots, slots + spare, device=device)
        shape = (layout.layers, slots + spare, layout.planes, layout.kv_heads, layout.head_dim)
        self.data = _zeros(shape, dtype, torch.device(device))
        heads = layout.planes * layout.kv_heads
        self.rows = list(self.data.view(layout.layers, slots + spare, heads * layout.head_dim).unbind())
        self.heads = list(self.data.view(layout.layers, (slots + spare) * heads, layout.head_dim).unbind())
        self.stamps = torch.zeros(slots, dtype=torch.int64, device=device) if stamps else None

    def store(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """kv [M, planes * kv_heads * head_dim] (key heads, then value heads) into slots [M] of one layer."""
        store_kv(self.rows[layer], slots, kv)

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages and the padding page: masked values could still overflow."""
        slots = self.data.shape[1] // self.page_size * self.page_size
        whole = self.data[:, :slots].view(self.data.shape[0], -1, self.page_size, *self.data.shape[2:])
        whole.index_fill_(1, torch.tensor([0, *pages], device=self.data.device), 0)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [M] to target [M] in all layers, all reads before all writes; stamps are copied too."""
        compact_kv(self.data, source, target)
        if self.stamps is not None:
            compact_kv(self.stamps[None], source, target)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU the system provides a memory page only when it is first written (torch.zeros writes all)."""
    count = math.prod(shape)
    if device.type != "cpu" or not count:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, count * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
