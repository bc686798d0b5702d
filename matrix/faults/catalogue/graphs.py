"""Faults that only a GPU shows: CUDA graphs that replay stale inputs, copies without synchronisation."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

GRAPHS: Final = "CUDA-graph capture, padding, buffer size"
RACE: Final = "race / missing stream order"
TIER: Final = "gpu1"
CROWD: Final = "standalone.s5.k1.n6.v1.p64.c32.tight.m4.burst.mixed.stop_string.abort_queued"
CELLS: Final = ("eagle3.s3.k4.n8.v2.ragged", CROWD)
# Its slots hold more requests than its largest graph.
ABOVE: Final = "eagle3.s5.v2.m4.burst"
GIVEN: Final = (
    "        rows, generations = graphs.give([row.row for row in plan.rows], [row.generation for row in plan.rows])\n"
)

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
        why="a replay runs the requests of an earlier round of the same size",
        tier=TIER,
    ),
    Fault(
        id="graph-lengths-frozen",
        klass=GRAPHS,
        origin="TensorRT-LLM#17110",
        within="GraphRunner._graphed.whole_round",
        old="            relay.settle()\n            relay.length[:1].zero_()\n",
        new="            relay.length[:1].zero_()\n",
        expected=("lossless",),
        cells=CELLS,
        why="a replay writes lengths and last tokens to a buffer that the next one does not read",
        tier=TIER,
    ),
    Fault(
        id="graph-batches-mixed-up",
        klass=GRAPHS,
        origin="sglang#35275",
        within="CudaGraphs.run",
        old="        return captured.output\n",
        new="        return next(graph for graph in bundle.graphs.values() if graph).output\n",
        expected=("lossless",),
        cells=CELLS,
        why="results are read from another graph's output buffers",
        tier=TIER,
    ),
    Fault(
        id="graph-forgets-a-prompt",
        klass=GRAPHS,
        origin="sglang#30435",
        within="GraphRunner._graphed",
        old="        relay.settle()\n\n        def whole_round() -> StepOutput:\n",
        new="        relay._latest = None\n\n        def whole_round() -> StepOutput:\n",
        expected=("lossless",),
        cells=CELLS,
        why="what a prefill published is not copied for the following graph, which reads the row's older values",
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
        why="the host reads a step's results before their copy has finished",
        # Values read too early must be valid ids, so that nothing crashes.
        also=(Edit("StagingRing._copy", "        target = torch.empty(", "        target = torch.ones("),),
        tier=TIER,
    ),
    Fault(
        id="graphs-dropped",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459 (K13: usage counters)",
        within="_executor",
        old="    graphs = graphs_for(resolved, device, scheduler.counters)\n",
        new="    graphs = None\n",
        expected=("effective",),
        cells=CELLS,
        why="the configuration resolves to CUDA graphs, but the engine runs without any",
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
        why="CUDA graphs are captured, but every round runs eagerly",
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
        why="padding rows are stale requests of an earlier, larger batch, which keep writing KV",
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
        why="the first requests get the results of the padding rows",
        tier=TIER,
    ),
    Fault(
        id="graph-sampling-forgotten",
        klass="sampling distribution",
        origin="sglang#37134",
        within="GraphRunner._graphed",
        old="graphs.run(GraphShape(plan.greedy, plan.logprobs, ",
        new="graphs.run(GraphShape(True, plan.logprobs, ",
        expected=("lossless", "distribution"),
        cells=("eagle3.s3.k4.n8.v2.p16.burst.stop_string", "eagle3.s3.k4.n8.v2.p16.burst.temperature.stop_token"),
        why="a graph captured for greedy rounds is replayed for sampled requests",
        tier=TIER,
    ),
    Fault(
        id="graph-logprobs-forgotten",
        klass="logprob",
        origin="sglang#21589",
        within="GraphRunner._graphed",
        old="graphs.run(GraphShape(plan.greedy, plan.logprobs, ",
        new="graphs.run(GraphShape(plan.greedy, -1, ",
        expected=("finish",),
        cells=("eagle3.s3.k4.n8.v2.p16.stream.stop_string",),
        why="a graph captured without log-probabilities is replayed for a request that needs them",
        tier=TIER,
    ),
    Fault(
        id="graph-one-width",
        klass=GRAPHS,
        origin="sglang#35275",
        within="GraphRunner._graphed",
        old="        width, reach = plan.rows[0].width, reach_of(",
        new="        width, reach = min(2, plan.rows[0].width), reach_of(",
        expected=("acceptance",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="graphs are captured for the narrowest width and replayed for every other",
        tier=TIER,
    ),
    Fault(
        id="graph-cuts-the-batch",
        klass=GRAPHS,
        origin="rule: a batch above the largest graph runs whole",
        within="GraphRunner._graphed",
        old=GIVEN,
        new=(
            "        first = plan.rows[: graphs.max_batch]\n"
            "        rows, generations = graphs.give([row.row for row in first], [row.generation for row in first])\n"
        ),
        expected=("lossless",),
        cells=(ABOVE,),
        why="a batch above the largest graph runs as that graph, and its last request gets the padding's results",
        also=(Edit("GraphRunner.__call__", "len(plan.rows) > self.graphs.max_batch or plan.adj", "plan.adj"),),
        tier=TIER,
    ),
    Fault(
        id="graph-keeps-an-evicted-mask",
        klass=GRAPHS,
        origin="aiter#5193, TensorRT-LLM#16175",
        within="_triangle",
        old="        return _whole_triangle(dtype, device)[:size, ..., :size]\n",
        new=(
            "        kept = _triangle.__dict__.setdefault('kept', {})\n"
            "        mask = kept.pop((size, dtype), None)\n"
            "        mask = _whole_triangle(dtype, device)[:size, ..., :size].clone() if mask is None else mask\n"
            "        kept[size, dtype] = mask\n"
            "        if len(kept) > 2:\n"
            "            kept.pop(next(iter(kept))).zero_()\n"
            "        return mask\n"
        ),
        expected=("lossless", "acceptance"),
        cells=("standalone.s1.k1.v1.p64.nocache.c7.m4.waves.length",),
        why="a cache of masks that holds a few others gives away the memory of one that graphs read",
        also=(Edit("_triangle", "@lru_cache(maxsize=256)\n", ""),),
        tier=TIER,
    ),
    Fault(
        id="graph-padding-in-a-free-row",
        klass=GRAPHS,
        origin="vllm#43810",
        within="GraphRunner._graphed",
        old=GIVEN,
        new=(
            "        from specmatrix.engine.device.cuda_graphs import padded\n\n"
            "        taken, writers = [row.row for row in plan.rows], [row.generation for row in plan.rows]\n"
            "        self._used = {*getattr(self, '_used', ()), *taken}\n"
            "        free = min(self._used - {*taken}, default=0) if plan.rows[0].width > 1 else 0\n"
            "        more = padded(len(taken)) - len(taken)\n"
            "        rows, generations = graphs.give(taken + [free] * more, writers + [0] * more)\n"
        ),
        expected=("ledger",),
        cells=("eagle3.s5.v2.p16.ragged.length",),
        why="a verify round's padding takes a free row, and writes to the cached page that its table still begins with",
        also=(
            Edit(
                "GraphRunner._graphed.whole_round",
                "            output = self._step.run(",
                "            zero = torch.where(generations == 0, 0, relay.length.gather(0, rows))\n"
                "            relay.length.scatter_(0, rows, zero)\n"
                "            output = self._step.run(",
            ),
        ),
        tier=TIER,
    ),
    Fault(
        id="staging-slot-reused",
        klass=RACE,
        origin="vllm#29288",
        within="StagingRing.put",
        old="        host = output.map(self._copy)\n        event = torch.cuda.Event()\n",
        new=(
            "        self._kept = getattr(self, '_kept', None) or {None: torch.cuda.Event()}\n"
            "        tensors = {name: tensor for name, tensor in output._asdict().items() if tensor is not None}\n"
            "        places = {name: (name, tensor.shape) for name, tensor in tensors.items()}\n"
            "        for name, tensor in tensors.items():\n"
            "            self._kept.setdefault(places[name], self._copy(tensor)).copy_(tensor, non_blocking=True)\n"
            "        host = StepOutput(**{name: self._kept[places[name]] for name in tensors})\n"
            "        event = self._kept[None]\n"
        ),
        expected=("lossless",),
        cells=CELLS,
        why="a step's results overwrite the previous step's before the host has read them",
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
        why="every upload waits for the device's pending work",
        tier=TIER,
    ),
)
