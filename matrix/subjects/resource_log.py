"""Records an engine's use of a GPU, as counted by torch and the driver: memory, CUDA graphs and early kernel
launches.

Watches the contents of cached pages: once the cache owns a page, nothing may write to it.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import AUTO, EngineConfig
from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device.cuda_graphs import CudaGraphs, GraphShape
from specmatrix.engine.memory_budget import LATER, models_of, needs
from specmatrix.engine.spec.builders import Locate
from specmatrix.matrix.subjects.observations import GraphRound, Resources
from specmatrix.matrix.subjects.work_log import weak_method

# CUgraphEdgeData.type of a kernel that may start before its predecessor ends.
PROGRAMMATIC: Final = 1


@dataclass
class GraphCounts:
    """Counts of this process so far: graphs captured and replayed, kernel-to-kernel edges in captured graphs, and those
    edges that are programmatic launches."""

    captures: int = 0
    replays: int = 0
    edges: int = 0
    early: int = 0


def device_bytes(device: str) -> int:
    """Bytes of all tensors on a GPU, 0 on a CPU. Collects garbage first.

    As requested: how far torch's allocator rounds up, a block of over 1 MiB by as much, depends on earlier engines.
    """
    if device == "cpu":
        return 0
    gc.collect()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


class ResourceRecorder:
    """Attaches to an engine without changing its results. before: `device_bytes` before its start."""

    def __init__(self, llm: LLM, config: EngineConfig, locate: Locate, before: int) -> None:
        self._rounds, self._bypassed, self._oversized = list[GraphRound](), 0, 0
        # The command's limits where it sets them, not the engine's resolved ones.
        most = config.cuda_graph_max_bs
        self._most = llm.resolved.cuda_graph_max_bs if most == AUTO else most
        self._limit_gb = config.cuda_graph_max_gb
        self._started = device_bytes(llm.resolved.device) - before
        budget = needs(llm.resolved, models_of(llm.resolved, locate), 1)
        self._budget = sum(need.device for need in budget if need.what not in LATER)
        self._counts = watched_graphs()
        self._before = GraphCounts(**vars(self._counts))
        self._graphs: Callable[[], CudaGraphs | None] = _no_graphs
        self.attach(llm.loop.executor)

    def attach(self, executor: Any) -> None:  # noqa: ANN401 - an executor of any stack
        """Also record what this executor runs, whose cache of graphs is empty."""
        self._rounds.append(GraphRound((), 0, 0))
        graphs: CudaGraphs | None = executor.graphs
        self._graphs = _no_graphs if graphs is None else ref(graphs)
        if graphs is None:
            return
        run, launch = weak_method(graphs, "run"), weak_method(executor, "launch")

        def noted_run(shape: GraphShape, plan: StepPlan, round_: Callable[[], object]) -> object:
            captures, replays = self._counts.captures, self._counts.replays
            output = run(shape, plan, round_)
            done = self._counts.captures - captures, self._counts.replays - replays
            self._rounds.append(GraphRound(tuple(shape), *done))
            return output

        def noted_launch(plan: StepPlan) -> object:
            before = len(self._rounds)
            handle = launch(plan)
            asked, fits = len(self._rounds) > before, len(plan.rows) <= self._most
            self._bypassed += fits and not (asked or plan.prefill or plan.adjusts)
            self._oversized += asked and not fits
            return handle

        graphs.run = noted_run  # type: ignore[assignment, method-assign]
        executor.launch = noted_launch

    def read(self) -> Resources:
        """Everything since the engine's start."""
        graphs = self._graphs()
        pools = [] if graphs is None else [bundle.pool for _, bundle in graphs.bundles if bundle.count]
        return Resources(
            rounds=tuple(self._rounds),
            captures=self._counts.captures - self._before.captures,
            replays=self._counts.replays - self._before.replays,
            edges=self._counts.edges - self._before.edges,
            early=self._counts.early - self._before.early,
            can_launch_early=_can_launch_early(),
            started_bytes=self._started,
            budget_bytes=self._budget,
            pool_bytes=_pool_bytes(pools),
            limit_gb=self._limit_gb,
            max_shapes=0 if graphs is None else graphs.bundles.kept,
            bypassed=self._bypassed,
            oversized=self._oversized,
        )


def _no_graphs() -> None:
    """Stand-in for the graph cache of an engine without graphs."""


def _pool_bytes(pools: list[Any]) -> int:
    """The size of private memory pools, from a snapshot of all of the allocator's memory."""
    if not pools:
        return 0
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(part["total_size"] for part in segments if tuple(part["segment_pool_id"]) in map(tuple, pools))


def _can_launch_early() -> bool:
    """Whether the GPU has programmatic dependent launches (compute capability 9.0 on, data-centre shared memory)."""
    chip: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return torch.version.hip is None and chip.major >= 9 and chip.shared_memory_per_block_optin >= 200 * 1024


@cache
def watched_graphs() -> GraphCounts:
    """Count what torch's CUDA graphs do in this process, from now on."""
    counts, kind = GraphCounts(), torch.cuda.CUDAGraph
    begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay

    def noted_begin(graph: torch.cuda.CUDAGraph, *given: object, **named: object) -> None:
        begin(graph, *given, **named)  # type: ignore[arg-type]
        counts.captures += 1

    def noted_end(graph: torch.cuda.CUDAGraph) -> None:
        edges, early = captured_edges(torch.cuda.current_stream().cuda_stream)
        end(graph)
        counts.edges, counts.early = counts.edges + edges, counts.early + early

    def noted_replay(graph: torch.cuda.CUDAGraph) -> None:
        replay(graph)
        counts.replays += 1

    kind.capture_begin, kind.capture_end, kind.replay = noted_begin, noted_end, noted_replay  # type: ignore[assignment]
    return counts


def captured_edges(stream: int) -> tuple[int, int]:
    """(edges, programmatic edges) of the graph that a stream is capturing, from the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    where = ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph)
    _check(driver.cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), *where, None, None))
    size = ctypes.c_size_t()
    _check(driver.cuGraphGetEdges_v2(graph, None, None, None, ctypes.byref(size)))
    nodes, data = (ctypes.c_void_p * size.value), (ctypes.c_uint8 * (8 * size.value))()
    _check(driver.cuGraphGetEdges_v2(graph, nodes(), nodes(), data, ctypes.byref(size)))
    return size.value, sum(kind == PROGRAMMATIC for kind in bytes(data)[2::8])


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the CUDA driver refused to describe a captured graph: error {code}")


class PageCanary:
    """Attaches to an engine without changing its results: copies each page when it is cached, and compares it when it
    is evicted or, if still cached, when the result is read. Sliding-window layers have no cached pages.

    watched: pages copied so far. Copies run in the steps' stream, after any step in flight.
    """

    def __init__(self, llm: LLM) -> None:
        self.watched = 0
        self._size = llm.loop.scheduler.ledger.page_size
        self._slots = (llm.loop.scheduler.ledger.groups[0].num_pages + 1) * self._size
        self._copies: dict[int, tuple[int, list[Tensor]]] = {}  # account that cached a page, and its content
        self._gone: list[tuple[int, Tensor]] = []
        self._pools: list[Tensor] = []
        self.attach(llm.loop.executor)
        llm.subscribe_journal(self._note)

    def attach(self, executor: Any) -> None:  # noqa: ANN401 - an executor of any stack
        """Watch the pools of this executor: an engine has new ones once its memory or weights are renewed."""
        self._pools = [pool.data[:, : self._slots] for pool in executor.kv.full.pools]

    def release(self) -> None:
        """Drop all references to the pools, which are about to be renewed."""
        self._pools, self._copies = [], {}

    @property
    def overwritten(self) -> list[int]:
        """Of each cached page that was written to the account that cached it. Waits for the device."""
        found = [*self._gone, *map(self._differs, self._copies)]
        changed = torch.stack([one for _, one in found]).tolist() if found else ()
        return [account for (account, _), wrong in zip(found, changed, strict=True) if wrong]

    def _note(self, entry: Entry) -> None:
        operation, account, _, pages = entry
        if operation == "donate":
            for page in pages[0]:
                self._copies[page] = account, [part.clone() for part in self._parts(page)]
                self.watched += 1
        elif operation == "evict":
            for page in self._copies.keys() & set(pages[0]):
                self._gone.append(self._differs(page))
                del self._copies[page]

    def _parts(self, page: int) -> Sequence[Tensor]:
        return [pool[:, page * self._size : (page + 1) * self._size] for pool in self._pools]

    def _differs(self, page: int) -> tuple[int, Tensor]:
        """Who cached a page, and whether it changed, as a bool tensor on the device; NaN equals NaN."""
        account, copies = self._copies[page]
        changed = [
            (one != two).logical_and((one == one) | (two == two)).any()
            for one, two in zip(self._parts(page), copies, strict=True)
        ]
        return account, torch.stack(changed).any()
