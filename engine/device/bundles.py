"""Graphs by the width of their rounds: a bundle per width, which a change of depth swaps whole.

A graph is made for a shape that came before, so the bundle of a depth holds the batch sizes of the slots that reach it
and no others (sglang#24055 prunes by hand what was captured ahead). What a bundle keeps and what memory holds are
bounded; whatever finds no graph runs without, and is counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

Graph = TypeVar("Graph")
# Graphs that a bundle keeps; the one that was used longest ago makes room.
KEPT: Final = 64
GIB: Final = 1 << 30
# Bytes that the graphs of all bundles may hold unless asked otherwise.
MOST_BYTES: Final = 4 * GIB


class Shape(NamedTuple):
    """What a graph is made for: how a round samples and how many log-probabilities it shows, requests with padding,
    nodes of each, positions read."""

    greedy: bool
    logprobs: int
    batch: int
    width: int
    reach: int


@dataclass(eq=False)
class Bundle(Generic[Graph]):
    """The graphs of one width, the one used longest ago first; None for a shape that ran once without.

    bytes: of the pool of memory that the graphs share, which goes back when the bundle is dropped.
    """

    graphs: OrderedDict[Shape, Graph | None] = field(default_factory=OrderedDict)
    pool: tuple[int, int] | None = None
    bytes: int = 0

    @property
    def count(self) -> int:
        """Graphs, shapes without one not counted."""
        return sum(graph is not None for graph in self.graphs.values())


class Bundles(Generic[Graph]):
    """The bundles of an engine, the one used longest ago first. dropped: how many made room for others.

    hold: called with a bundle that gained a graph, the bytes of its pool. A shape whose graph alone is beyond
    `most_bytes` is `refused`, and runs without.
    """

    def __init__(self, hold: Callable[[Bundle[Graph]], int], kept: int = KEPT, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0
        self.kept, self.most_bytes = kept, most_bytes
        self._hold = hold
        self._refused: set[Shape] = set()
        self._by_width: OrderedDict[int, Bundle[Graph]] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[int, Bundle[Graph]]]:
        """Widths and their bundles."""
        return iter(self._by_width.items())

    @property
    def memory(self) -> tuple[int, int]:
        """How many graphs there are, and the bytes of their pools."""
        counts = [(bundle.count, bundle.bytes) for bundle in self._by_width.values()]
        return sum(count for count, _ in counts), sum(size for count, size in counts if count)

    def swap(self, width: int) -> Bundle[Graph]:
        """The bundle of a width, which is now the one used last."""
        bundle = self._by_width.setdefault(width, Bundle())
        self._by_width.move_to_end(width)
        return bundle

    def seen(self, shape: Shape) -> bool:
        """Whether a round of this shape may be captured: it ran before. If not, it has run from now on."""
        bundle = self.swap(shape.width)
        if shape in self._refused:
            return False
        if shape in bundle.graphs:
            bundle.graphs.move_to_end(shape)
            return True
        bundle.graphs[shape] = None
        if len(bundle.graphs) > self.kept:
            bundle.graphs.popitem(last=False)
        return False

    def keep(self, shape: Shape, graph: Graph) -> bool:
        """Keep a graph in its bundle. True if another bundle, or this one, was dropped for its memory."""
        bundle = self.swap(shape.width)
        bundle.graphs[shape] = graph
        bundle.bytes = self._hold(bundle)
        before = self.dropped
        while self.memory[1] > self.most_bytes:
            width, oldest = next(iter(self._by_width.items()))
            if oldest is bundle and bundle.count == 1:
                self._refused.add(shape)
            del self._by_width[width]
            self.dropped += oldest.count > 0
        return self.dropped > before
