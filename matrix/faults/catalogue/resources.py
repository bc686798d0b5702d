"""Faults of what an engine takes of a GPU: answers stay right, and speed or memory is lost."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

GRAPHS: Final = "CUDA-graph capture, padding, buffer size"
IGNORED: Final = "silent fallback / ignored parameter"
TIER: Final = "gpu1"
CELLS: Final = ("eagle3.s3.k4.n8.v2.ragged",)

RESOURCE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="graphs-captured-again",
        klass=GRAPHS,
        origin="vllm#29184",
        within="CudaGraphs.run",
        old="bundle.graphs[shape] or self._capture(bundle, round_)",
        new="self._capture(bundle, round_)",
        expected=("resources",),
        cells=CELLS,
        why="every round captures its graph again before it replays it",
        tier=TIER,
    ),
    Fault(
        id="graphs-now-and-then",
        klass=GRAPHS,
        origin="rule: no eager round in the steady state",
        within="CudaGraphs.run",
        old="        if not self.bundles.seen(shape) or not self._cuda:\n",
        new="        if not self.bundles.seen(shape) or self.bundles._round % 3 == 0:\n",
        expected=("resources",),
        cells=CELLS,
        why="every third round runs without the graph that it has",
        tier=TIER,
    ),
    Fault(
        id="graphs-of-full-batches-only",
        klass=IGNORED,
        origin="rule: no eager round in the steady state",
        within="GraphRunner.__call__",
        old="        if len(plan.rows) > self.graphs.max_batch or plan.adjusts",
        new="        if 2 < len(plan.rows) < 8 or len(plan.rows) > self.graphs.max_batch or plan.adjusts",
        expected=("resources",),
        cells=CELLS,
        why="batches of 3 to 7 requests never ask for a graph, although they are counted as eager rounds",
        tier=TIER,
    ),
    Fault(
        id="graph-bytes-misreported",
        klass="metric misreport",
        origin="rule: what torch's allocator holds",
        within="_held",
        old='block["total_size"]',
        new='block["allocated_size"]',
        expected=("resources",),
        cells=CELLS,
        why="the limit of graph memory counts less than the graphs' pools hold",
        tier=TIER,
    ),
    Fault(
        id="memory-twice",
        klass="KV leak / over-allocation",
        origin="rule: memory is budgeted before it is allocated",
        within="KVPool.__init__",
        old="        heads = layout.planes * layout.kv_heads\n",
        new="        heads = layout.planes * layout.kv_heads\n        self.shadow = self.data.clone()\n",
        expected=("resources",),
        cells=CELLS,
        why="an engine allocates its KV twice, which its budget does not know",
        tier=TIER,
    ),
    Fault(
        id="graph-budget-dropped",
        klass=IGNORED,
        origin="rule: an option arrives",
        within="graphs_for",
        old=", most_bytes=resolved.cuda_graph_max_gb * GIB)",
        new=")",
        expected=("effective",),
        cells=CELLS,
        why="cuda_graph_max_gb is resolved and shown, but graphs keep to the default limit",
        tier=TIER,
    ),
    Fault(
        id="early-launches-lost",
        klass=IGNORED,
        origin="rule: a kernel that can starts early",
        within="launch",
        old='{"PDL": True, "launch_pdl": True}',
        new='{"PDL": True}',
        expected=("resources",),
        cells=CELLS,
        why="kernels are built for programmatic dependent launches, but launched without",
        tier=TIER,
    ),
    Fault(
        id="early-launches-nowhere",
        klass=IGNORED,
        origin="rule: a kernel that can starts early",
        within="supports_pdl",
        old="chip.major >= 9",
        new="chip.major >= 90",
        expected=("resources",),
        cells=CELLS,
        why="no GPU is taken to have programmatic dependent launches",
        tier=TIER,
    ),
)
