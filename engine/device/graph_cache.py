"""Graphs by the width of their rounds: a bundle per width, which a change of depth swaps whole.

A graph is made for a shape that came before, so the bundle of a depth holds the batch sizes of the slots that reach it
and no others (sglang#24055 prunes by hand what was captured ahead). How many graphs a bundle keeps and what memory all
hold are bounded; whatever finds no graph runs without, and is counted.

Only what has rested makes room: where more is in use than the bounds allow, the graphs that came first stay and the
other shapes run without, so that a workload that repeats itself soon captures nothing any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

Graph = TypeVar("Graph")
# Graphs that a bundle keeps.
KEPT: Final = 64
# Rounds without a use behind which a graph, or a bundle, may make room for another.
RESTED: Final = 4096
GIB: Final = 1 << 30
# Bytes that the graphs of all bundles may hold unless asked otherwise.
MOST_BYTES: Final = 4 * GIB


class GraphShape(NamedTuple):
    """What a graph is made for: how a round samples and how many log-probabilities it shows, requests with padding,
    nodes of each, positions read."""

    greedy: bool
    logprobs: int
    batch: int
    width: int
    reach: int


@dataclass(eq=False)
class GraphBundle(Generic[Graph]):
    """The graphs of one width, the one used longest ago first; None for a shape that ran once without.

    bytes: of the pool of memory that the graphs share, which goes back only when all of them are dropped. used: the
    round in which each shape came last. refused: shapes that did not fit beside what is in use.
    """

    graphs: OrderedDict[GraphShape, Graph | None] = field(default_factory=OrderedDict)
    pool: tuple[int, int] | None = None
    bytes: int = 0
    used: dict[GraphShape, int] = field(default_factory=dict)
    last: int = 0
    refused: set[GraphShape] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Graphs, shapes without one not counted."""
        return sum(graph is not None for graph in self.graphs.values())

    def forget(self, shape: GraphShape) -> None:
        """Drop a shape and its graph."""
        del self.graphs[shape], self.used[shape]

    def drop_graphs(self) -> None:
        """Drop all graphs and their memory; their shapes may be captured again."""
        self.graphs.update(dict.fromkeys(self.graphs))
        self.pool, self.bytes = None, 0


class GraphCache(Generic[Graph]):
    """The bundles of an engine, the one used longest ago first. dropped: how often the graphs of one were dropped.

    hold: called with a bundle that gained a graph, the bytes of its pool. kept: graphs of a bundle at most; most_bytes:
    of all pools; rested: rounds without a use behind which something may make room.
    """

    def __init__(
        self,
        hold: Callable[[GraphBundle[Graph]], int],
        kept: int = KEPT,
        most_bytes: int = MOST_BYTES,
        rested: int = RESTED,
    ) -> None:
        self.dropped = 0
        self.kept, self.most_bytes, self.rested = kept, most_bytes, rested
        self._hold = hold
        self._round = 0
        self._by_width: OrderedDict[int, GraphBundle[Graph]] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[int, GraphBundle[Graph]]]:
        """Widths and their bundles."""
        return iter(self._by_width.items())

    @property
    def memory(self) -> tuple[int, int]:
        """How many graphs there are, and the bytes of their pools."""
        counts = [(bundle.count, bundle.bytes) for bundle in self._by_width.values()]
        return sum(count for count, _ in counts), sum(size for count, size in counts if count)

    def swap(self, width: int) -> GraphBundle[Graph]:
        """The bundle of a width, which is now the one used last."""
        bundle = self._by_width.setdefault(width, GraphBundle())
        self._by_width.move_to_end(width)
        bundle.last = self._round
        return bundle

    def seen(self, shape: GraphShape) -> bool:
        """Whether a round of this shape is a graph, or may be captured: it ran before, and there is room.

        Once for each round. A shape that did not run before has from now on.
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
        """Keep a graph in its bundle. True if a bundle's graphs were dropped for memory: others, or these."""
        bundle = self.swap(shape.width)
        bundle.graphs[shape] = graph
        bundle.used[shape] = self._round
        bundle.bytes = self._hold(bundle)
        before = self.dropped
        while self.memory[1] > self.most_bytes:
            self.dropped += 1
            width = self._rested_width()
            if width is None:
                # A pool shrinks only as a whole, so the others are captured again, and this one is not.
                bundle.refused.add(shape)
                bundle.drop_graphs()
                break
            del self._by_width[width]
            for other in self._by_width.values():
                other.refused.clear()
        return self.dropped > before

    def _trim(self, bundle: GraphBundle[Graph]) -> None:
        """Forget one shape of a bundle that has too many: one without a graph, else a rested one, else the newest."""
        if len(bundle.graphs) > self.kept:
            *others, newest = bundle.graphs
            without = (shape for shape in others if bundle.graphs[shape] is None)
            bundle.forget(next(without, others[0] if others and self._has_rested(bundle.used[others[0]]) else newest))

    def _has_room(self, bundle: GraphBundle[Graph], shape: GraphShape) -> bool:
        """Whether one more graph of the mean size fits, or something makes room for it."""
        count, size = self.memory
        fits = count == 0 or size + size / count <= self.most_bytes
        if fits and shape not in bundle.refused:
            return True
        if self._rested_width() is not None:
            return True
        oldest = next((shape for shape, graph in bundle.graphs.items() if graph is not None), None)
        if oldest is None or not self._has_rested(bundle.used[oldest]):
            return False
        # The next graph takes its memory within the pool.
        bundle.forget(oldest)
        return True

    def _rested_width(self) -> int | None:
        """The width of the bundle that was used longest ago, if it has rested and holds graphs."""
        held = ((width, bundle) for width, bundle in self._by_width.items() if bundle.count)
        width, bundle = next(held, (0, None))
        return width if bundle is not None and self._has_rested(bundle.last) else None

    def _has_rested(self, last: int) -> bool:
        return self._round - last >= self.rested
