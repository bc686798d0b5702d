"""The target's memory by groups of layers that see the same positions: each group has its own pool and slot table.

The first group sees all positions. A group with a sliding window holds pages only for positions that are still read; a
recurrent one has a state in each page, that after the last committed token within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, VerifyResult, count
from specmatrix.engine.device.pool import KVLayout, KVPool, StatePool
from specmatrix.engine.device.slot_table import SlotTable, stamp
from specmatrix.kernels.decoder_layer import KVArrays
from specmatrix.kernels.gated_delta import gated_delta


class GroupSlots(NamedTuple):
    """A step's slots in one group: read [B, T] of positions 0..T-1, or [B, 1] of a state; write [B, W].

    Only of states: start [B], the tokens before the step, and pages [B, P], the rows' slots.
    """

    read: Tensor
    write: Tensor
    start: Tensor | None = None
    pages: Tensor | None = None


class KVGroup:
    """Layers that see all positions. window: size of a sliding window, the query's token included; None without one.

    pool: of the target's layers. pools: that one, and those of drafts, which share its page numbers and slot table.
    """

    window: int | None = None

    def __init__(self, pool: KVPool, table: SlotTable) -> None:
        self.pool, self.table = pool, table
        self.pools = [pool]

    def slots(self, batch: StepBatch) -> GroupSlots:
        """The slots of a step."""
        return GroupSlots(batch.slots, batch.write)

    def attention(self, batch: StepBatch, slots: GroupSlots, bias: Tensor, positions: Tensor) -> StepAttention:
        """Attention over the group's pool. bias [B, 1, W, T] over all positions; positions [B, W]."""
        return StepAttention(self.pool, slots.write, slots.read, bias, start=batch.start, causal=batch.chunks)

    def commit(self, slots: GroupSlots, verdict: VerifyResult) -> None:
        """Move the accepted path's KV to the front of the block; chains need no move. A source is never before its
        destination. Drafts' KV is not moved, because their next extend rewrites it."""
        if verdict.moved is not None:
            source, target = slots.write.gather(1, verdict.path), slots.write[:, : verdict.path.shape[1]]
            self.pool.move(source.flatten(), target.flatten())

    def stamp(self, batch: StepBatch, slots: GroupSlots, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Stamp the slots about to be written. Returns how many stamps were compared and how many were wrong."""
        stamps, generations = self.pool.stamps, batch.generations
        assert stamps is not None and generations is not None
        seen = self._seen(batch)
        wrong = (stamps[slots.read] != self.table.expected(batch.rows, batch.padded_kv_len)) & seen
        stamps[slots.write.flatten()] = stamp(generations[:, None], positions).flatten()
        return seen.sum(), wrong.sum()

    def _seen(self, batch: StepBatch) -> Tensor:
        """[B, T] bool: the positions below `start` that the step's first query sees."""
        return count(batch.padded_kv_len, batch.start.device) < batch.start[:, None]


class WindowGroup(KVGroup):
    """Layers with a sliding window of `window` tokens, the query's own included.

    Slots before a row's window may be in pages that another row owns by now; the mask hides them.
    """

    def __init__(self, pool: KVPool, table: SlotTable, window: int) -> None:
        super().__init__(pool, table)
        self.window: int = window

    def slots(self, batch: StepBatch) -> GroupSlots:
        read = self.table.read(batch.rows, batch.padded_kv_len)
        write = read.gather(1, batch.positions)
        return GroupSlots(read, write.masked_fill(batch.write == 0, 0))

    def attention(self, batch: StepBatch, slots: GroupSlots, bias: Tensor, positions: Tensor) -> StepAttention:
        masked = windowed_bias(bias, positions, key_positions(batch, positions), self.window)
        return StepAttention(self.pool, slots.write, slots.read, masked, sparse=True)

    def _seen(self, batch: StepBatch) -> Tensor:
        keys, start = count(batch.padded_kv_len, batch.start.device), batch.start[:, None]
        return (keys < start) & (keys > start - self.window)


class StateGroup:
    """Recurrent layers. The slot of a page of `interval` tokens holds the state after the last committed token within
    it; `width` node slots per row hold that after each node of a round, until `commit` takes some of them.

    A step without earlier tokens begins with slot 0, which is zero, so no slot has to be cleared. table: of pages, not
    of positions. writers: of a table whose stamps name every position's generation.
    """

    window: int | None = None
    pools: Sequence[KVPool] = ()  # no draft shares its slots

    def __init__(
        self, pool: StatePool, table: SlotTable, writers: SlotTable, slots: int, width: int, interval: int
    ) -> None:
        self.pool, self.table, self._writers, self.interval = pool, table, writers, interval
        self._first, self._width = 1 + slots, width

    def slots(self, batch: StepBatch) -> GroupSlots:
        """The slots that a step begins with [B, 1] and writes [B, W]. A chunk writes the slot of its last token's page
        after that token; padding writes slot 0, which keeps its zeros."""
        start, pages = batch.start, self.table.read(batch.rows, self.table.positions)
        begin = self._slot(pages, start).masked_fill(start == 0, 0)[:, None]
        column = count(batch.width, start.device)
        if batch.chunks:
            assert batch.lengths is not None
            live = self._slot(pages, start + batch.lengths)[:, None]
            return GroupSlots(begin, live * (column == batch.lengths[:, None] - 1))
        # Rows are apart by the widest round, not by this one.
        nodes = self._first + batch.rows[:, None] * self._width + column
        return GroupSlots(begin, nodes.masked_fill(begin == 0, 0), start, pages)

    def _slot(self, pages: Tensor, tokens: Tensor) -> Tensor:
        """The slots of states after `tokens` [B], at least 1."""
        return pages.gather(1, ((tokens - 1).clamp(min=0) // self.interval)[:, None])[:, 0]

    def states(self, slots: GroupSlots, parents: Tensor | None, deterministic: bool) -> StepStates:
        """Access to the layers' states. parents [B, W] of a tree, None for chains and chunks. Unless deterministic,
        chunks, whose slots have no pages, may take the chunked form of the delta rule."""
        return StepStates(self.pool, slots.read[:, 0], slots.write, parents, slots.pages is None and not deterministic)

    def commit(self, slots: GroupSlots, verdict: VerifyResult) -> None:
        """Take the state after the last accepted node, also of chains, and whether all or none were accepted; and where
        the path goes on behind the end of a page, the state at that end. A page is no shorter than a round, so a path
        passes one end at most."""
        start, pages = slots.start, slots.pages
        assert start is not None and pages is not None
        end = start + verdict.count
        edge = end // self.interval * self.interval
        passed = (start < edge) & (edge < end)
        taken = torch.stack((verdict.count, torch.where(passed, edge - start, 1)))
        kept = torch.stack((passed | True, passed))
        nodes = slots.write.gather(1, verdict.path.gather(1, (taken - 1).T)).T
        targets = torch.stack([self._slot(pages, start + tokens) for tokens in taken])
        self.pool.move((nodes * kept).flatten(), (targets * kept).flatten())

    def stamp(self, batch: StepBatch, slots: GroupSlots, positions: Tensor) -> tuple[Tensor, Tensor]:
        """As for `KVGroup`; a state's stamp is its generation and length."""
        stamps, generations, writers = self.pool.stamps, batch.generations, self._writers.writers
        assert stamps is not None and generations is not None and writers is not None
        seen, before = batch.start > 0, (batch.start - 1).clamp(min=0)
        wrong = (stamps[slots.read[:, 0]] != stamp(writers[batch.rows, before], batch.start)) & seen
        stamps[slots.write.flatten()] = stamp(generations[:, None], positions + 1).flatten()
        return seen.sum(), wrong.sum()


class StepStates:
    """A step's access to recurrent states. read int64 [B], write int64 [B, W], parents int64 [B, W] or None; chunk: as
    for `gated_delta`."""

    def __init__(self, pool: StatePool, read: Tensor, write: Tensor, parents: Tensor | None, chunk: bool) -> None:
        self._pool, self._slots = pool, (read, write, parents, chunk)

    def __call__(self, index: int, u: Tensor, b: Tensor, a: Tensor, *weights: Tensor) -> Tensor:
        pool = self._pool
        return gated_delta(u, b, a, *weights, pool.windows[index], pool.states[index], *self._slots)


def key_positions(batch: StepBatch, positions: Tensor) -> Tensor:
    """The position of each key [B, T]: its index, except in the block, where node m is at positions [B, W] [:, m]."""
    index = count(batch.padded_kv_len, positions.device).expand(len(positions), -1)
    if positions is batch.positions:
        return index
    node = index - batch.start[:, None]
    inside = (node >= 0) & (node < positions.shape[1])
    return torch.where(inside, positions.gather(1, node.clamp(0, positions.shape[1] - 1)), index)


def windowed_bias(bias: Tensor, queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """bias [B, 1, W, T] with keys at or below query position - window hidden. queries [B, W], keys [B, T] positions."""
    far = keys[:, None, :] <= queries[:, :, None] - window
    return bias.masked_fill(far[:, None], float("-inf"))


class SplitAttention:
    """Routes each layer of a step to its group's pool. routes: (group, index in its pool) by layer."""

    def __init__(
        self, groups: Sequence[StepAttention], routes: Sequence[tuple[int, int]], states: StepStates | None = None
    ) -> None:
        self._groups, self._routes, self._states = groups, routes, states

    def arrays(self, layer: int) -> KVArrays:
        group, index = self._routes[layer]
        return self._groups[group].arrays(index)

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        group, index = self._routes[layer]
        return self._groups[group](index, q, kv)

    def recur(self, layer: int, u: Tensor, b: Tensor, a: Tensor, *weights: Tensor) -> Tensor:
        """`gated_delta` over a recurrent layer's states, with the layer's weights."""
        assert self._states is not None
        return self._states(self._routes[layer][1], u, b, a, *weights)


class StepKV(NamedTuple):
    """One step's access to the groups: the target layers' attention, and each group's slots.

    stamps int64 [2]: how many stamps were compared, and how many were wrong; None without stamps.
    """

    attention: StepAttention | SplitAttention
    slots: list[GroupSlots]
    stamps: Tensor | None = None


class KVGroups:
    """groups: the group that sees all positions, then others. routes: (group, index in its pool) by layer. states: the
    group of recurrent layers, the last one, if there are any."""

    def __init__(
        self, groups: Sequence[KVGroup], routes: Sequence[tuple[int, int]], states: StateGroup | None = None
    ) -> None:
        self.attending, self.routes, self.states = tuple(groups), tuple(routes), states
        self.groups: tuple[KVGroup | StateGroup, ...] = (*groups, *(() if states is None else (states,)))
        self.full = self.attending[0]

    def extend(self, rows: Sequence[PlanRow]) -> None:
        """Enter the pages and writers that the plan added."""
        for number, group in enumerate(self.groups):
            group.table.extend(rows, number)

    def begin(self, batch: StepBatch, bias: Tensor, positions: Tensor, parents: Tensor | None = None) -> StepKV:
        """Call before the target's forward. bias [B, 1, W, T] over all positions; positions [B, W]; parents [B, W] of
        trees, None for consecutive tokens."""
        slots = [group.slots(batch) for group in self.groups]
        pairs = zip(self.attending, slots, strict=False)
        parts = [group.attention(batch, own, bias, positions) for group, own in pairs]
        if len(slots) == 1:
            return StepKV(parts[0], slots)
        states = self.states and self.states.states(slots[-1], parents, self.full.pool.deterministic)
        return StepKV(SplitAttention(parts, self.routes, states), slots)

    def commit(self, kv: StepKV, verdict: VerifyResult) -> None:
        """Call at the end of every round: each group keeps the KV of the accepted path."""
        for group, slots in zip(self.groups, kv.slots, strict=True):
            group.commit(slots, verdict)


class StampedGroups(KVGroups):
    """Groups with stamped slots: each step compares the stamps that it reads and writes its own."""

    def begin(self, batch: StepBatch, bias: Tensor, positions: Tensor, parents: Tensor | None = None) -> StepKV:
        kv = super().begin(batch, bias, positions, parents)
        pairs = zip(self.groups, kv.slots, strict=True)
        checked, wrong = zip(*(group.stamp(batch, slots, positions) for group, slots in pairs), strict=True)
        return kv._replace(stamps=torch.stack((reduce(add, checked), reduce(add, wrong))))


def routes_of(windows: Sequence[int | None]) -> list[tuple[int, int]]:
    """(group, index in its pool) of each layer, from each layer's window: one group for each window, after group 0;
    RECURRENT counts as a window."""
    kinds = list(dict.fromkeys((None, *windows)))
    return [(kinds.index(window), windows[:layer].count(window)) for layer, window in enumerate(windows)]


def split(layout: KVLayout, routes: Sequence[tuple[int, int]]) -> list[KVLayout]:
    """The layout of each group, from the layout of all layers."""
    sizes = [sum(group == number for group, _ in routes) for number in range(max(group for group, _ in routes) + 1)]
    return [replace(layout, layers=layers) for layers in sizes]
