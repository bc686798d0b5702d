"""What only a GPU can get wrong: graphs that repeat too much, copies that nobody waits for."""

from typing import Final

from matrix.faults.fault import Fault

GRAPHS: Final = "CUDA-graph capture, padding, buffer size"
RACE: Final = "race / missing stream order"
TIER: Final = "gpu1"
CROWD: Final = "standalone.s5.k1.n6.v1.p64.c32.tight.m4.burst.mixed.stop_string.abort_queued"
CELLS: Final = ("eagle3.s3.k4.n8.v2.ragged", CROWD)

GRAPH_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="graph-rows-frozen",
        klass=GRAPHS,
        origin="sglang#10892 (B033)",
        file="engine/device/graphs.py",
        old="        if given != self._last:\n",
        new="        if len(given) != len(self._last):\n",
        expected=("lossless", "ledger"),
        cells=CELLS,
        why="a replay serves the requests of an earlier round of its size",
        tier=TIER,
    ),
    Fault(
        id="graph-replays-a-prompt",
        klass=GRAPHS,
        origin="TensorRT-LLM#17110 (B115)",
        file="engine/launch.py",
        old="        self.relay.settle()\n\n        def whole_round() -> Results:\n",
        new="        def whole_round() -> Results:\n",
        expected=("lossless",),
        cells=CELLS,
        why="lengths that a prompt left are captured with the first graph instead of read by each replay",
        tier=TIER,
    ),
    Fault(
        id="graph-lengths-frozen",
        klass=GRAPHS,
        origin="TensorRT-LLM#17110 (B115)",
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
        origin="sglang#35275 (B038)",
        file="engine/device/graphs.py",
        old="        return captured.results\n",
        new="        return next(graph for graph in self._graphs.values() if graph).results\n",
        expected=("lossless",),
        cells=CELLS,
        why="results are read where another graph leaves its own",
        tier=TIER,
    ),
    Fault(
        id="graph-inputs-late",
        klass=RACE,
        origin="sglang#18803 (semantics 6.5)",
        file="engine/device/graphs.py",
        old="            self._given[:, :size].copy_(sent, non_blocking=True)\n",
        new=(
            "            late = torch.cuda.Stream()\n"
            "            late.wait_stream(torch.cuda.current_stream())\n"
            "            with torch.cuda.stream(late):\n"
            "                torch.cuda._sleep(20_000_000)\n"
            "                self._given[:, :size].copy_(sent, non_blocking=True)\n"
        ),
        expected=("lossless", "ledger"),
        cells=CELLS,
        why="the rows of a round are copied in another stream, and the round does not wait for it",
        tier=TIER,
    ),
    Fault(
        id="results-unawaited",
        klass=RACE,
        origin="sglang#30435 (semantics 6.3)",
        file="engine/device/staging.py",
        old="            staged.event.synchronize()\n",
        new="            staged.event.query()\n",
        expected=("lossless", "finish"),
        cells=CELLS,
        why="the host reads a step's results before their copy has come",
        tier=TIER,
    ),
    Fault(
        id="staging-slot-shared",
        klass=RACE,
        origin="semantics 6.5: two steps in flight need two slots",
        file="engine/device/staging.py",
        old="        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)\n",
        new=(
            '        slots = torch.__dict__.setdefault("_slots", {})\n'
            "        key = (tensor.shape, tensor.dtype)\n"
            "        target = slots.get(key)\n"
            "        if target is None:\n"
            "            target = slots[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)\n"
        ),
        expected=("lossless", "finish"),
        cells=CELLS,
        why="results of the same shape share one buffer on the host, whichever step they are of",
        tier=TIER,
    ),
    Fault(
        id="upload-reused",
        klass=RACE,
        origin="sglang#22113 (B066)",
        file="engine/device/upload.py",
        old="    return buffer.pin_memory().to(device, non_blocking=True)\n",
        new=(
            "    if buffer.dtype is torch.int64:\n"
            "        shared = _sent.__dict__.setdefault('shared', torch.empty(9999, dtype=torch.int64).pin_memory())\n"
            "        return shared[: len(buffer)].copy_(buffer).to(device, non_blocking=True)\n"
            "    return buffer.pin_memory().to(device, non_blocking=True)\n"
        ),
        expected=("lossless", "ledger"),
        cells=CELLS,
        why="every upload goes through one buffer on the host, which is filled again before the copy has read it",
        tier=TIER,
    ),
)
