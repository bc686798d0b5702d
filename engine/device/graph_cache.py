"""CUDA graphs by the width of their rounds: one bundle per width, swapped as a whole when the depth changes.

A graph is captured for a shape that occurred before, so a depth's bundle holds only the batch sizes of the slots that
reach it (sglang#24055 prunes graphs captured in advance by hand). The number of graphs per bundle and the memory of all
graphs are bounded; rounds without a graph run eagerly and are counted.

Only idle graphs are dropped: if more are in use than the bounds allow, the earliest graphs stay and other shapes run
eagerly, so that a repeating workload soon needs no more captures.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

Graph = TypeVar("Graph")
# Maximum graphs per bundle.
KEPT: Final = 64
# Rounds without use after which a graph or a bundle may be dropped to make room.
IDLE_ROUNDS: Final = 4096
GIB: Final = 1 << 30
# Default maximum memory of all graphs, in bytes.
MOST_BYTES: Final = 4 * GIB


class GraphShape(NamedTuple):
    """The shape that a graph is captured for: a round's sampling mode and number of log-probabilities, requests with
    padding, nodes per request, positions read."""

    greedy: bool
    logprobs: int
    batch: int
    width: int
    padded_kv_len: int


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

    hold: maps a bundle that gained a graph to the size of its pool in bytes. kept: maximum graphs per bundle;
    most_bytes: maximum size of all pools; idle_rounds: rounds without use after which something may be dropped.
    """

    def __init__(
        self,
        hold: Callable[[GraphBundle[Graph]], int],
        kept: int = KEPT,
        most_bytes: int = MOST_BYTES,
        idle_rounds: int = IDLE_ROUNDS,
    ) -> None:
        self.dropped = 0
        self.kept, self.most_bytes, self.idle_rounds = kept, most_bytes, idle_rounds
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
        """Whether a round of this shape has a graph or may be captured: it ran before, and there is room.

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
        """Add a graph to its bundle. True if a bundle's graphs, other ones or these, were dropped for memory."""
        bundle = self.swap(shape.width)
        bundle.graphs[shape] = graph
        bundle.used[shape] = self._round
        bundle.bytes = self._hold(bundle)
        before = self.dropped
        while self.memory[1] > self.most_bytes:
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
        """Drop one shape of a bundle with too many: one without a graph, else an idle one, else the newest."""
        if len(bundle.graphs) > self.kept:
            *others, newest = bundle.graphs
            without = (shape for shape in others if bundle.graphs[shape] is None)
            bundle.forget(next(without, others[0] if others and self._is_idle(bundle.used[others[0]]) else newest))

    def _has_room(self, bundle: GraphBundle[Graph], shape: GraphShape) -> bool:
        """Whether one more graph of the average size fits, or something can be dropped for it."""
        count, size = self.memory
        fits = count == 0 or size + size / count <= self.most_bytes
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
