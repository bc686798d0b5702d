"""Rounds as CUDA graphs, one per shape; a round whose shape has no graph yet runs eagerly. Both are counted.

A graph repeats the same kernels on the same memory, so everything that a round reads must have a fixed address:
weights, pools, tables and the relay do, the rows are copied into static buffers here, and everything else is allocated
during capture and stays the graph's own. The graphs of one width share a memory pool, since they run one after another
in one stream. A round in which the host works, for a grammar without a token table, is divided there into two graphs.

A graph is captured for a shape that occurred before, so a depth's bundle holds only the batch sizes of the slots that
reach it (sglang#24055 prunes graphs captured in advance by hand). The number of graphs per bundle and the memory of all
graphs are bounded. Only idle graphs are dropped: if more are in use than the bounds allow, the earliest graphs stay and
other shapes run eagerly, so that a repeating workload soon needs no more captures.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from specmatrix.engine.core.config.asked import GIB
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.step import StepPlan, padded
from specmatrix.engine.device.staging import StepOutput, integers

__all__ = ["Captured", "CudaGraphs", "GraphShape", "pad_kv_len"]

Graph = TypeVar("Graph")
# Maximum graphs per bundle.
KEPT: Final = 64
# Rounds without use after which a graph or a bundle may be dropped to make room.
IDLE_ROUNDS: Final = 4096
# Default maximum memory of all graphs, in bytes.
MAX_BYTES: Final = 4 * GIB


class GraphShape(NamedTuple):
    """The shape that a graph is captured for: a round's sampling mode and number of log-probabilities, requests with
    padding, nodes per request, positions read, and where masks come from (`GrammarMasks.path`)."""

    greedy: bool
    logprobs: int
    batch: int
    width: int
    padded_kv_len: int
    masks: int = 0


@dataclass(eq=False)
class GraphBundle(Generic[Graph]):
    """The graphs of one width, least recently used first; None for a shape that ran once, without a graph.

    bytes: size of the graphs' shared memory pool, which is freed only when all of them are dropped. used: the last
    round of each shape. refused: shapes that did not fit beside the graphs in use.
    """

    graphs: OrderedDict[GraphShape, Graph | None] = field(default_factory=OrderedDict)
    pool: tuple[int, int] | None = None
    bytes: int = 0
    used: dict[GraphShape, int] = field(default_factory=dict)
    last: int = 0
    refused: set[GraphShape] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Number of graphs, without shapes that have none."""
        return sum(graph is not None for graph in self.graphs.values())

    def forget(self, shape: GraphShape) -> None:
        """Drop a shape and its graph."""
        del self.graphs[shape], self.used[shape]

    def drop_graphs(self) -> None:
        """Drop all graphs and their memory; their shapes may be captured again."""
        self.graphs.update(dict.fromkeys(self.graphs))
        self.pool, self.bytes = None, 0


class GraphCache(Generic[Graph]):
    """The bundles of an engine, least recently used first. dropped: how many times a bundle's graphs were dropped.

    hold: returns the size in bytes of the pool of a bundle that gained a graph. kept: maximum graphs per bundle;
    max_bytes: maximum size of all pools; idle_rounds: rounds without use after which something may be dropped.
    """

    def __init__(
        self,
        hold: Callable[[GraphBundle[Graph]], int],
        kept: int = KEPT,
        max_bytes: int = MAX_BYTES,
        idle_rounds: int = IDLE_ROUNDS,
    ) -> None:
        self.dropped = 0
        self.kept, self.max_bytes, self.idle_rounds = kept, max_bytes, idle_rounds
        self._hold = hold
        self._round = 0
        self._by_width: OrderedDict[int, GraphBundle[Graph]] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[int, GraphBundle[Graph]]]:
        """Widths and their bundles."""
        return iter(self._by_width.items())

    @property
    def memory(self) -> tuple[int, int]:
        """Number of graphs, and the size of their pools in bytes."""
        counts = [(bundle.count, bundle.bytes) for bundle in self._by_width.values()]
        return sum(count for count, _ in counts), sum(size for count, size in counts if count)

    def swap(self, width: int) -> GraphBundle[Graph]:
        """The bundle of a width, which becomes the most recently used."""
        bundle = self._by_width.setdefault(width, GraphBundle())
        self._by_width.move_to_end(width)
        bundle.last = self._round
        return bundle

    def seen(self, shape: GraphShape) -> bool:
        """Whether a shape has a graph or may be captured: it ran before, and there is memory.

        Call it once per round; it records the shape.
        """
        self._round += 1
        bundle = self.swap(shape.width)
        known = shape in bundle.graphs
        bundle.graphs.setdefault(shape)
        bundle.graphs.move_to_end(shape)
        bundle.used[shape] = self._round
        if not known:
            self._trim(bundle)
            return False
        return bundle.graphs[shape] is not None or self._has_room(bundle, shape)

    def keep(self, shape: GraphShape, graph: Graph) -> bool:
        """Add a graph to its bundle. True if graphs of this or another bundle were dropped to free memory."""
        bundle = self.swap(shape.width)
        bundle.graphs[shape] = graph
        bundle.used[shape] = self._round
        bundle.bytes = self._hold(bundle)
        before = self.dropped
        while self.memory[1] > self.max_bytes:
            self.dropped += 1
            width = self._idle_width()
            if width is None:
                # A pool is only freed as a whole: the bundle's other graphs are captured again, but not this one.
                bundle.refused.add(shape)
                bundle.drop_graphs()
                break
            del self._by_width[width]
            for other in self._by_width.values():
                other.refused.clear()
        return self.dropped > before

    def _trim(self, bundle: GraphBundle[Graph]) -> None:
        """If a bundle has too many shapes, drop one: one without a graph, else an idle one, else the newest."""
        if len(bundle.graphs) > self.kept:
            *others, newest = bundle.graphs
            without = (shape for shape in others if bundle.graphs[shape] is None)
            bundle.forget(next(without, others[0] if others and self._is_idle(bundle.used[others[0]]) else newest))

    def _has_room(self, bundle: GraphBundle[Graph], shape: GraphShape) -> bool:
        """Whether one more graph of the average size fits, or something can be dropped for it."""
        count, size = self.memory
        fits = count == 0 or size + size / count <= self.max_bytes
        if fits and shape not in bundle.refused:
            return True
        if self._idle_width() is not None:
            return True
        oldest = next((shape for shape, graph in bundle.graphs.items() if graph is not None), None)
        if oldest is None or not self._is_idle(bundle.used[oldest]):
            return False
        # The next graph reuses its memory within the pool.
        bundle.forget(oldest)
        return True

    def _idle_width(self) -> int | None:
        """The width of the least recently used bundle with graphs, if it is idle."""
        held = ((width, bundle) for width, bundle in self._by_width.items() if bundle.count)
        width, bundle = next(held, (0, None))
        return width if bundle is not None and self._is_idle(bundle.last) else None

    def _is_idle(self, last: int) -> bool:
        return self._round - last >= self.idle_rounds


# Graphs read a multiple of READ_STEP positions up to FINE * READ_STEP, then of an eighth of their power of two.
READ_STEP: Final = 256
FINE: Final = 8


# What the host does in the middle of a round, given the round's plan; it reads and writes tensors of fixed addresses.
HostWork: TypeAlias = Callable[[StepPlan], None]


class Captured(NamedTuple):
    """The parts of a round in order, graphs and what the host does between them, and the tensors that hold its output
    after a replay."""

    parts: list[torch.cuda.CUDAGraph | HostWork]
    output: StepOutput


class CudaGraphs:
    """Captures and replays rounds of up to `max_batch` requests on one device.

    The rows and generations of a round are in int64 [max_batch] buffers. bundles: the graphs, at most `kept` per width
    and `max_bytes` of memory. made: number of graphs captured so far. On a CPU nothing is captured, and every round
    runs eagerly, padding included.
    """

    def __init__(
        self, max_batch: int, device: torch.device, counters: Counters, kept: int = KEPT, max_bytes: int = MAX_BYTES
    ) -> None:
        self.max_batch, self.counters = max_batch, counters
        self._given = torch.zeros(2, padded(max_batch), dtype=torch.int64, device=device)
        self._last: tuple[int, ...] = ()
        self.made = 0
        self._cuda = device.type == "cuda"
        self.bundles: GraphCache[Captured] = GraphCache(_held, kept, max_bytes)
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._parts: list[torch.cuda.CUDAGraph | HostWork] = []  # of the round that is being captured
        self._capturing: tuple[torch.cuda.CUDAGraph, tuple[int, int]] | None = None  # and its pool

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

    def run(self, shape: GraphShape, plan: StepPlan, round_: Callable[[], StepOutput]) -> StepOutput:
        """Run a round of a plan. Returns its output, valid until the next; round_ computes it on the device from the
        buffers.

        The first round of a shape runs eagerly, which compiles kernels and creates tables that rounds share; the second
        is captured.
        """
        if not self.bundles.seen(shape) or not self._cuda:
            self.counters.hit("graph.eager")
            return round_()
        bundle = self.bundles.swap(shape.width)
        known = bundle.graphs[shape]
        captured = known or self._capture(bundle, round_)
        # A capture runs all parts but the last.
        for part in captured.parts if known else captured.parts[-1:]:
            if isinstance(part, torch.cuda.CUDAGraph):
                part.replay()
            else:
                part(plan)
        self.counters.hit("graph.replayed")
        if bundle.graphs[shape] is None and self.bundles.keep(shape, captured):
            # Return the dropped graphs' memory to the device; their last replay is earlier in the stream.
            torch.cuda.empty_cache()
        return captured.output

    def on_host(self, work: HostWork, plan: StepPlan) -> None:
        """Do the host's work in the middle of a round. If the round is being captured, its graph so far ends, and runs
        before the work; another begins."""
        divided = self._end()
        if divided is not None:
            divided[0].replay()
        work(plan)
        if divided is not None:
            self._parts.append(work)
            self._begin(divided[1])

    def _capture(self, bundle: GraphBundle[Captured], round_: Callable[[], StepOutput]) -> Captured:
        stream, main = self._stream, torch.cuda.current_stream()
        assert stream is not None
        if bundle.pool is None or not bundle.count:
            # A pool is freed with its last graph.
            bundle.pool = torch.cuda.graph_pool_handle()
        stream.wait_stream(main)
        with torch.cuda.stream(stream), _uncollected():
            # A GEMM's workspace must be in the graph's own memory, not where an earlier capture or model left it.
            torch._C._cuda_clearCublasWorkspaces()
            self._begin(bundle.pool)
            try:
                output = round_()
            finally:
                self._end()
                parts, self._parts = self._parts, []
        main.wait_stream(stream)
        self.made += 1
        return Captured(parts, output)

    def _begin(self, pool: tuple[int, int]) -> None:
        """Begin to capture a graph."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        self._parts.append(graph)
        self._capturing = graph, pool

    def _end(self) -> tuple[torch.cuda.CUDAGraph, tuple[int, int]] | None:
        """End and return the graph that is being captured, and its pool; None if there is none."""
        ended, self._capturing = self._capturing, None
        if ended is not None:
            ended[0].capture_end()
        return ended


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


def pad_kv_len(bound: int, most: int) -> int:
    """How many positions a graph reads for rows that end below `bound`, at most `most`."""
    step = max(READ_STEP, (1 << (bound - 1).bit_length()) // (2 * FINE))
    return min(-(-bound // step) * step, most)
