"""What only a GPU can get wrong: graphs that repeat too much, copies that nobody waits for."""

from typing import Final

from matrix.faults.fault import Edit, Fault

GRAPHS: Final = "CUDA-graph capture, padding, buffer size"
RACE: Final = "race / missing stream order"
TIER: Final = "gpu1"
CROWD: Final = "standalone.s5.k1.n6.v1.p64.c32.tight.m4.burst.mixed.stop_string.abort_queued"
CELLS: Final = ("eagle3.s3.k4.n8.v2.ragged", CROWD)

GRAPH_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="graph-rows-frozen",
        klass=GRAPHS,
        origin="sglang#10892",
        file="engine/device/graphs.py",
        old="        if given != self._last:\n",
        new="        if len(given) != len(self._last):\n",
        expected=("lossless", "ledger"),
        cells=CELLS,
        why="a replay serves the requests of an earlier round of its size",
        tier=TIER,
    ),
    Fault(
        id="graph-lengths-frozen",
        klass=GRAPHS,
        origin="TensorRT-LLM#17110",
        file="engine/launch.py",
        old="            self.relay.settle()\n            self.relay.length[:1].zero_()\n",
        new="            self.relay.length[:1].zero_()\n",
        expected=("lossless",),
        cells=CELLS,
        why="a replay leaves its lengths and last tokens where the next one does not look",
        tier=TIER,
    ),
    Fault(
        id="graph-batches-mixed-up",
        klass=GRAPHS,
        origin="sglang#35275",
        file="engine/device/graphs.py",
        old="        return captured.results\n",
        new="        return next(graph for graph in bundle.graphs.values() if graph).results\n",
        expected=("lossless",),
        cells=CELLS,
        why="results are read where another graph leaves its own",
        tier=TIER,
    ),
    Fault(
        id="graph-forgets-a-prompt",
        klass=GRAPHS,
        origin="sglang#30435",
        file="engine/launch.py",
        old="        self.relay.settle()\n\n        def whole_round() -> Results:\n",
        new="        self.relay._latest = None\n\n        def whole_round() -> Results:\n",
        expected=("lossless",),
        cells=CELLS,
        why="what a prompt published is dropped where a graph follows, which reads the row's older values",
        tier=TIER,
    ),
    Fault(
        id="results-unawaited",
        klass=RACE,
        origin="sglang#30435",
        file="engine/device/staging.py",
        old="            staged.event.synchronize()\n",
        new="            staged.event.query()\n",
        expected=("lossless",),
        cells=CELLS,
        why="the host reads a step's results before their copy has come",
        # What it reads too early must not crash it.
        also=(Edit("engine/device/staging.py", "        target = torch.empty(", "        target = torch.ones("),),
        tier=TIER,
    ),
    Fault(
        id="graphs-dropped",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459 (K13: usage counters)",
        file="engine/build.py",
        old="        Graphs(resolved.cuda_graph_max_bs, device, probes) if resolved.cuda_graph_max_bs else None,\n",
        new="        None,\n",
        expected=("effective",),
        cells=CELLS,
        why="an engine that resolved to graphs runs without any",
        tier=TIER,
    ),
    Fault(
        id="graphs-never-replayed",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459 (K13: usage counters)",
        file="engine/device/graphs.py",
        old="        if not self.bundles.seen(shape) or not self._cuda:\n",
        new="        if True:\n",
        expected=("effective",),
        cells=CELLS,
        why="graphs are on, and every round runs without one",
        tier=TIER,
    ),
)
