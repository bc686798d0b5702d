"""What only a GPU can get wrong: graphs that repeat too much, copies that nobody waits for."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

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
        within="CudaGraphs.give",
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
        within="DeviceExecutor._repeated.whole_round",
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
        within="CudaGraphs.run",
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
        within="DeviceExecutor._repeated",
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
        within="StagingRing.take",
        old="            staged.event.synchronize()\n",
        new="            staged.event.query()\n",
        expected=("lossless",),
        cells=CELLS,
        why="the host reads a step's results before their copy has come",
        # What it reads too early must not crash it.
        also=(Edit("StagingRing._copy", "        target = torch.empty(", "        target = torch.ones("),),
        tier=TIER,
    ),
    Fault(
        id="graphs-dropped",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459 (K13: usage counters)",
        within="_executor",
        old="    graphs = graphs_for(resolved, device, scheduler.probes)\n",
        new="    graphs = None\n",
        expected=("effective",),
        cells=CELLS,
        why="an engine that resolved to graphs runs without any",
        tier=TIER,
    ),
    Fault(
        id="graphs-never-replayed",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459 (K13: usage counters)",
        within="CudaGraphs.run",
        old="        if not self.bundles.seen(shape) or not self._cuda:\n",
        new="        if True:\n",
        expected=("effective",),
        cells=CELLS,
        why="graphs are on, and every round runs without one",
        tier=TIER,
    ),
    Fault(
        id="graph-padding-stale",
        klass=GRAPHS,
        origin="vllm#43869",
        within="CudaGraphs.give",
        old="            self._given[:, :size].copy_(sent, non_blocking=True)\n",
        new="            self._given[:, : len(rows)].copy_(sent[:, : len(rows)], non_blocking=True)\n",
        expected=("ledger",),
        cells=("eagle3.s5.v2.p16.ragged.length",),
        why="what fills a batch up are requests of a larger one before, which go on writing KV",
        tier=TIER,
    ),
    Fault(
        id="graph-padding-first",
        klass=GRAPHS,
        origin="sglang#18647",
        within="CudaGraphs.give",
        old="        given = (*rows, *padding, *generations, *padding)\n",
        new="        given = (*padding, *rows, *padding, *generations)\n",
        expected=("lossless",),
        cells=("eagle3.s5.v2.p16.ragged.length",),
        why="the first requests are told what padding got",
        tier=TIER,
    ),
    Fault(
        id="graph-sampling-forgotten",
        klass="sampling distribution",
        origin="sglang#37134",
        within="DeviceExecutor._repeated",
        old="graphs.run(GraphShape(plan.greedy, plan.logprobs, len(rows), width, reach), whole_round)\n",
        new="graphs.run(GraphShape(True, plan.logprobs, len(rows), width, reach), whole_round)\n",
        expected=("lossless", "distribution"),
        cells=("eagle3.s3.k4.n8.v2.p16.burst.stop_string", "eagle3.s3.k4.n8.v2.p16.burst.temperature.stop_token"),
        why="a graph of greedy rounds is replayed where tokens must be drawn",
        tier=TIER,
    ),
    Fault(
        id="graph-logprobs-forgotten",
        klass="logprob",
        origin="sglang#21589",
        within="DeviceExecutor._repeated",
        old="graphs.run(GraphShape(plan.greedy, plan.logprobs, len(rows), width, reach), whole_round)\n",
        new="graphs.run(GraphShape(plan.greedy, -1, len(rows), width, reach), whole_round)\n",
        expected=("finish",),
        cells=("eagle3.s3.k4.n8.v2.p16.ragged.stream.mixed.stop_token",),
        why="a graph that shows no log-probabilities is replayed for a turn that asks for them",
        tier=TIER,
    ),
    Fault(
        id="graph-one-width",
        klass=GRAPHS,
        origin="sglang#35275",
        within="DeviceExecutor._repeated",
        old="        width, reach = plan.rows[0].width, reach_of(",
        new="        width, reach = min(2, plan.rows[0].width), reach_of(",
        expected=("acceptance",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="graphs are made for the narrowest depth and replayed at every other",
        tier=TIER,
    ),
    Fault(
        id="staging-slot-reused",
        klass=RACE,
        origin="vllm#29288",
        within="StagingRing.put",
        old=(
            "        host = {name: self._copy(tensor) for name, tensor in tensors.items()}\n"
            "        event = torch.cuda.Event()\n"
        ),
        new=(
            "        self._kept = getattr(self, '_kept', None) or {None: torch.cuda.Event()}\n"
            "        places = {name: (name, tensor.shape) for name, tensor in tensors.items()}\n"
            "        for name, tensor in tensors.items():\n"
            "            self._kept.setdefault(places[name], self._copy(tensor)).copy_(tensor, non_blocking=True)\n"
            "        host = {name: self._kept[places[name]] for name in tensors}\n"
            "        event = self._kept[None]\n"
        ),
        expected=("lossless",),
        cells=CELLS,
        why="a step's results are copied over those of the step before, which nobody has read yet",
        tier=TIER,
    ),
    Fault(
        id="upload-waits",
        klass="silent fallback / ignored parameter",
        origin="vllm#55202",
        within="_sent",
        old="    return buffer.pin_memory().to(device, non_blocking=True)\n",
        new="    return buffer.to(device)\n",
        expected=("effective",),
        cells=CELLS,
        why="every upload waits for what the device still has to do",
        tier=TIER,
    ),
)
