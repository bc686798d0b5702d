"""All tensors of one step, built only from the plan and the relay."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.engine.device.staging import integers
from specmatrix.engine.device.token_tables import GrammarRows

# Positions with cached masks, by device type; a table of 4096 takes 32 MiB in half precision.
MAX_TRIANGLE: Final = {"cpu": 1024, "cuda": 4096}


class HostTokens(NamedTuple):
    """What the host knows of a row's text. key: an id that no other text has; tokens: the whole text, which begins with
    `prompt` tokens of the prompt. nodes: the most that the row may verify."""

    key: int
    tokens: tuple[int, ...]
    prompt: int
    nodes: int


class VerifyResult(NamedTuple):
    """The target's decision about the trees of a round.

    path [B, D+1] node indices, root first, padded with their own column number; count [B] accepted rows in
    1..D+1, bonus included; tokens [B, D+1] emitted after each path node, valid below count. moved [B] bool: the path's
    nodes are not the first of the tree; None for chains, where they always are.
    """

    path: Tensor
    count: Tensor
    tokens: Tensor
    moved: Tensor | None = None


class Causal(NamedTuple):
    """Consecutive tokens of a step: positions [B, n], write slots [B, n], bias [B, 1, n, T]."""

    positions: Tensor
    write: Tensor
    bias: Tensor


@dataclass(eq=False, slots=True)
class StepBatch:
    """B requests by W positions, padded to the widest request.

    rows [B]; start [B] KV length before the step; padded_kv_len: number of positions that the step reads, at least the
    host's bound on start + W; root [B, 1] the last token, which has no KV yet (of a prefill step only
    that of a running request means something).
    slots [B, T] of positions 0..T-1, T = padded_kv_len; past a row's reservation they are 0 or another row's.
    lengths [B]: how far each row is real: tokens of each chunk, or nodes that a verify round verifies (`shorten`); None
    in a round whose rows all have width W. known: the rows' tokens, in
    verify rounds of a drafter that reads tokens on the host.
    positions [B, W] start..start + W - 1, in a prefill step at most padded_kv_len - 1, and write [B, W] their slots,
    the padding slot 0 past a chunk's end or a row's verified nodes, whose positions are the root's.
    relay: the source of the rows' values; None in a batch built by hand. generations [B]: the writers in the rows'
    stamps, None without stamps. greedy: every row is. grammar: the rows' states in
    token tables, None without any. chunks: of a prefill step, not nodes of a round.
    """

    rows: Tensor
    start: Tensor
    root: Tensor
    width: int
    padded_kv_len: int
    slots: Tensor
    lengths: Tensor | None
    known: tuple[HostTokens, ...] = ()
    relay: Relay | None = None
    generations: Tensor | None = None
    greedy: bool = True
    grammar: GrammarRows | None = None
    positions: Tensor = field(init=False)
    write: Tensor = field(init=False)
    _causal: Causal | None = field(init=False, default=None)
    chunks: bool = field(init=False)

    def __post_init__(self) -> None:
        at = self.start.unsqueeze(1)
        if self.width > 1:
            at = at + count(self.width, self.start.device)
        self.chunks = self.lengths is not None
        self.write = self._slots_at(at)
        # The padding of a chunk with a late start would be past the positions that the model supports.
        self.positions = at if self.lengths is None else at.clamp(max=self.padded_kv_len - 1)

    @classmethod
    def of(cls, plan: StepPlan, relay: Relay, table: SlotTable) -> StepBatch:
        """The batch of a plan whose pages are already in the table. Takes lengths from the relay, not from the host."""
        device = relay.length.device
        rows = _index(tuple([r.row for r in plan.rows]), device)
        start, root = relay.lengths_and_roots(rows)
        lengths = None
        if plan.prefill:
            given = integers([r.start for r in plan.rows], device)
            start = torch.where(given < 0, start, given)
            lengths = integers([r.width for r in plan.rows], device)
        width, padded_kv_len = plan.width, table.pad_kv_len(plan.bound)
        told = [r for r in plan.rows if r.tokens and not plan.prefill]
        known = tuple([HostTokens(r.rid, r.tokens, r.prompt, r.width) for r in told])
        generations = None if table.writers is None else integers([r.generation for r in plan.rows], device)
        slots = table.read(rows, padded_kv_len)
        given = (rows, start, root, width, padded_kv_len, slots, lengths, known, relay, generations, plan.greedy)
        return cls(*given)

    @classmethod
    def round(
        cls,
        rows: Tensor,
        generations: Tensor,
        width: int,
        padded_kv_len: int,
        relay: Relay,
        table: SlotTable,
        greedy: bool = False,
    ) -> StepBatch:
        """The batch of a verify round, from device tensors only: rows and generations [B]."""
        start, root = relay.lengths_and_roots(rows)
        slots = table.read(rows, padded_kv_len)
        return cls(rows, start, root, width, padded_kv_len, slots, None, (), relay, generations, greedy)

    def narrow(self, width: int) -> None:
        """Take only the first `width` nodes of each row, before anything of the round was computed."""
        self.width = width
        self.positions, self.write = self.positions[:, :width], self.write[:, :width]

    def shorten(self, lengths: Tensor) -> None:
        """Verify only the first `lengths` [B] nodes of each row in this round. A position past them writes to the
        padding slot and sees what the root sees, so that nothing there is read."""
        beyond = past(lengths, self.width)
        self.lengths, self._causal = lengths, None
        self.positions = torch.where(beyond, self.start[:, None], self.positions)
        self.write = self.write.masked_fill(beyond, 0)

    @property
    def carried(self) -> DraftState:
        """The drafter's carried state of these rows; the initial state in the first step of a request's residence."""
        assert self.relay is not None
        return self.relay.state(self.rows)

    @property
    def sampling(self) -> SamplingRows | None:
        """The rows' sampling parameters; None if every row is greedy."""
        return None if self.greedy or self.relay is None else self.relay.sampling_of(self.rows)

    def causal(self, width: int, dtype: torch.dtype) -> Causal:
        """The first `width` positions as consecutive tokens. Cached: target and draft use the same masks."""
        if self._causal is None or self._causal.bias.dtype is not dtype:
            mask = causal_bias if self.chunks else round_bias
            self._causal = Causal(self.positions, self.write, mask(self.positions, self.padded_kv_len, dtype))
        if width == self.width:
            return self._causal
        positions, write, bias = self._causal
        return Causal(positions[:, :width], write[:, :width], bias[:, :, :width])

    def _slots_at(self, at: Tensor) -> Tensor:
        """Slots of positions [B, W]; past a chunk's end padding slot 0."""
        if self.lengths is None:
            return self.slots.gather(1, at)
        slots = self.slots.gather(1, at.clamp(max=self.padded_kv_len - 1))
        # A row's table may still contain pages past its reservation; a padded position must not write there.
        return slots.masked_fill(at >= (self.start + self.lengths)[:, None], 0)


@lru_cache(maxsize=256)
def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Row numbers on the device; cached, because consecutive rounds mostly have the same rows."""
    with torch.inference_mode(False):
        return integers(numbers, device)


@cache
def _counted(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device=device)


@cache
def _hidden_or_seen(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The two values of a bias, -inf and 0."""
    with torch.inference_mode(False):
        # Filled on the device: copying a host value would synchronise.
        return torch.full((), float("-inf"), dtype=dtype, device=device), torch.zeros((), dtype=dtype, device=device)


@cache
def _whole_triangle(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        longest = MAX_TRIANGLE[device.type]
        return causal_bias(count(longest, device)[:, None], longest, dtype)


@lru_cache(maxsize=256)
def _triangle(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size, 1, 1, size], the causal masks of a query at each position; a view, to save per-step slicing calls."""
    with torch.inference_mode(False):
        return _whole_triangle(dtype, device)[:size, ..., :size]


def count(size: int, device: torch.device) -> Tensor:
    """0..size-1 as int64, a view of a table that grows by doubling; do not write to it."""
    return _counted(1 << max(size - 1, 63).bit_length(), device)[:size]


def past(lengths: Tensor, width: int) -> Tensor:
    """[B, width] bool: columns at or past lengths [B]."""
    return count(width, lengths.device) >= lengths[:, None]


def causal_bias(positions: Tensor, padded_kv_len: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, W, padded_kv_len]: 0 where key position <= query position, else -inf. positions [B, W]."""
    keys = count(padded_kv_len, positions.device)
    return torch.where(keys > positions[:, None, :, None], *_hidden_or_seen(dtype, positions.device))


def round_bias(positions: Tensor, padded_kv_len: int, dtype: torch.dtype) -> Tensor:
    """`causal_bias` of positions [B, W], all below `padded_kv_len`: for small sizes, rows of a cached triangle."""
    if padded_kv_len > MAX_TRIANGLE[positions.device.type]:
        return causal_bias(positions, padded_kv_len, dtype)
    batch, width = positions.shape
    bias = _triangle(padded_kv_len, dtype, positions.device).index_select(0, positions.view(-1))
    return bias.view(batch, 1, width, padded_kv_len)


def prefix_bias(start: Tensor, padded_kv_len: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, 1, padded_kv_len]: 0 at positions below start. start [B]."""
    return causal_bias(start[:, None] - 1, padded_kv_len, dtype)


def tree_bias(start: Tensor, ancestors: Tensor, padded_kv_len: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, N, padded_kv_len]: 0 at positions below start and at the slots of a node's ancestors and itself.

    ancestors [B, N, N] bool: [b, n, m] is true if node n may attend to node m; node m is at position start + m.
    """
    nodes = ancestors.shape[1]
    key = count(padded_kv_len, start.device) - start[:, None]  # [B, T] node index of each key
    inside = (key >= 0) & (key < nodes)
    seen = ancestors.gather(2, key.clamp(0, nodes - 1)[:, None, :].expand(-1, nodes, -1))
    hidden = ~((key < 0)[:, None, :] | (inside[:, None, :] & seen))
    return torch.where(hidden[:, None], *_hidden_or_seen(dtype, start.device))
