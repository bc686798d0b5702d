"""Retracted session turns: the KV that the session keeps, and the state that they resume from."""

from typing import Final

from specmatrix.matrix.faults.catalogue.sessions import OFF_BY_ONE, STALE
from specmatrix.matrix.faults.fault import Fault

CHAIN: Final = "eagle3.s3.k1.n4.v1.p64.snug.pair.stream.length"
TREE: Final = "eagle3.s3.k4.n8.v2.p16.snug.pair.stream.length"
DRAFT: Final = "prefix-cache semantics under EAGLE"
RESUME: Final = "self.held.resume(request.account, self.cache.key_span)"
LAYERS: Final = "nextn.deepseek.s2.v2.p4.ragged.stream.length"
LAYERS_CACHED: Final = "nextn.deepseek.s2.v2.m4.burst"
UNDONE: Final = "        undone = aborted or request.retracting\n"

RETURN_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="retracted-turn-keeps-nothing",
        klass=STALE,
        origin="sglang#22862 (a retracted turn saves its slot, and the retry restores it)",
        within="Scheduler.kept",
        old="        if not request.holds:\n",
        new="        if request.retracting or not request.holds:\n",
        expected=("session", "effective"),
        cells=(CHAIN, TREE),
        why="a retracted turn drops the KV of all earlier turns, so the whole history is prefilled again",
    ),
    Fault(
        id="abort-behind-a-return",
        klass=OFF_BY_ONE,
        origin="sglang#22273",
        within="Scheduler.kept",
        old=UNDONE,
        new="        undone = (aborted and not request.retractions) or request.retracting\n",
        expected=("session",),
        cells=("eagle3.s3.v2.p4.snug.pair.stream.length.abort_running",),
        why="an aborted turn that had resumed after a retraction stays in its session",
    ),
    Fault(
        id="turn-draft-kv-stale",
        klass=DRAFT,
        origin="sglang#10846",
        within="Admission.open",
        old=RESUME,
        new="self.held.resume(request.account, 0)",
        expected=("session", "acceptance"),
        cells=("eagle3.s5.v2.p4.pair.stream", "standalone.s3.v2.p64.snug.pair.stream.length", LAYERS),
        why="the draft KV at the start of a turn belongs to a predicted token instead of the turn's first",
    ),
    Fault(
        id="turn-draft-kv-of-one-layer",
        klass=DRAFT,
        origin="sglang#10846",
        within="Admission.open",
        old=RESUME,
        new="self.held.resume(request.account, min(1, self.cache.key_span))",
        expected=("session", "acceptance"),
        cells=(LAYERS,),
        why="the second layer's draft KV at the end of a turn belongs to tokens that were never emitted",
    ),
    Fault(
        id="layer-span-none",
        klass=DRAFT,
        origin="sglang#10846",
        within="MultiLayerDrafter.__init__",
        old="        self.steps = self.key_span = len(layers)\n",
        new="        self.steps, self.key_span = len(layers), 0\n",
        expected=("ledger", "session", "acceptance"),
        cells=(LAYERS, LAYERS_CACHED),
        why="the draft KV at the end of a shared prefix depends on another request's tokens",
    ),
)
