"""Rounds as CUDA graphs, one per shape; a round whose shape has no graph yet runs eagerly. Both are counted.

A graph repeats the same kernels on the same memory, so everything that a round reads must have a fixed address:
weights, pools, tables and the relay do, the rows are copied into static buffers here, and everything else is allocated
during capture and stays the graph's own. The graphs of one width share a memory pool, since they run one after another
in one stream.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.observe.counters import Counters
from specmatrix.engine.device.graph_cache import KEPT, MOST_BYTES, GraphBundle, GraphCache, GraphShape
from specmatrix.engine.device.pinned_copy import integers
from specmatrix.engine.device.staging import StepOutput

__all__ = ["Captured", "CudaGraphs", "GraphShape", "pad_kv_len", "padded"]

# Batches up to SMALL are padded to a power of two, larger ones to a multiple of SMALL.
SMALL: Final = 8
# The positions that a graph reads are a multiple of this up to FINE times it, then of an eighth of their power of two.
READ_STEP: Final = 256
FINE: Final = 8


class Captured(NamedTuple):
    """A graph, and the tensors that hold its round's output after a replay."""

    graph: torch.cuda.CUDAGraph
    output: StepOutput


class CudaGraphs:
    """Captures and replays rounds of up to `max_batch` requests on one device.

    The rows and generations of a round are in int64 [max_batch] buffers. bundles: the graphs, at most `kept` per width
    and `most_bytes` of memory. made: number of graphs captured so far. On a CPU nothing is captured, and every round
    runs eagerly, padding included.
    """

    def __init__(
        self, max_batch: int, device: torch.device, counters: Counters, kept: int = KEPT, most_bytes: int = MOST_BYTES
    ) -> None:
        self.max_batch, self.counters = max_batch, counters
        self._given = torch.zeros(2, padded(max_batch), dtype=torch.int64, device=device)
        self._last: tuple[int, ...] = ()
        self.made = 0
        self._cuda = device.type == "cuda"
        self.bundles: GraphCache[Captured] = GraphCache(_held, kept, most_bytes)
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    @property
    def memory(self) -> tuple[int, int]:
        """Number of graphs, and the size of their pools in bytes."""
        return self.bundles.memory

    def set_rows(self, rows: Sequence[int], generations: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Copy a round's rows and generations into the buffers, padded with row 0 and generation 0."""
        size = padded(len(rows))
        padding = (0,) * (size - len(rows))
        given = (*rows, *padding, *generations, *padding)
        if given != self._last:
            self._last = given
            sent = integers(given, self._given.device).view(2, size)
            self._given[:, :size].copy_(sent, non_blocking=True)
        return self._given[0, :size], self._given[1, :size]

    def run(self, shape: GraphShape, round_: Callable[[], StepOutput]) -> StepOutput:
        """The output of a round, valid until the next one; round_ computes it on the device, from the buffers.

        The first round of a shape runs eagerly, which compiles kernels and creates tables that rounds share; the second
        is captured.
        """
        if not self.bundles.seen(shape) or not self._cuda:
            self.counters.hit("graph.eager")
            return round_()
        bundle = self.bundles.swap(shape.width)
        captured = bundle.graphs[shape] or self._capture(bundle, round_)
        captured.graph.replay()
        self.counters.hit("graph.replayed")
        if bundle.graphs[shape] is None and self.bundles.keep(shape, captured):
            # Return the dropped graphs' memory to the device; their last replay is earlier in the stream.
            torch.cuda.empty_cache()
        return captured.output

    def _capture(self, bundle: GraphBundle[Captured], round_: Callable[[], StepOutput]) -> Captured:
        graph = torch.cuda.CUDAGraph()
        stream, main = self._stream, torch.cuda.current_stream()
        assert stream is not None
        if not bundle.count:
            # A pool is freed with its last graph.
            bundle.pool = torch.cuda.graph_pool_handle()
        stream.wait_stream(main)
        with torch.cuda.stream(stream), _uncollected():
            # A GEMM's workspace must be in the graph's own memory, not where an earlier capture or model left it.
            torch._C._cuda_clearCublasWorkspaces()
            graph.capture_begin(pool=bundle.pool, capture_error_mode="thread_local")
            try:
                output = round_()
            finally:
                graph.capture_end()
        main.wait_stream(stream)
        self.made += 1
        return Captured(graph, output)


def _held(bundle: GraphBundle[Captured]) -> int:
    """The size of a bundle's pool in bytes."""
    return sum(block["total_size"] for block in torch.cuda.memory_snapshot(bundle.pool))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection: destroying an old graph during a capture would break the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def padded(batch: int) -> int:
    """The batch size, padding included, of the graph for `batch` requests."""
    return 1 << (batch - 1).bit_length() if batch <= SMALL else -(-batch // SMALL) * SMALL


def pad_kv_len(bound: int, most: int) -> int:
    """How many positions a graph reads for rows that end below `bound`, at most `most`."""
    step = max(READ_STEP, (1 << (bound - 1).bit_length()) // (2 * FINE))
    return min(-(-bound // step) * step, most)
