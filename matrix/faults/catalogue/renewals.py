"""Memory that is released and resumed, and weights that are loaded again between two waves of requests."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

KLASS: Final = "stale or un-restored state"

RENEWAL_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="cache-outlives-memory",
        klass=KLASS,
        origin="rule: KV of released memory, or of other weights, is never read again",
        within="LifeCycle._empty",
        old="        scheduler.cache.evict(len(scheduler.cache.nodes))\n",
        new="",
        expected=("lossless", "ledger", "work"),
        cells=("eagle3.tiers.v2.waves.length",),
        why="the prefix cache keeps its pages while the memory behind them is released",
    ),
    Fault(
        id="resumed-without-an-option",
        klass="silent fallback / ignored parameter",
        origin="rule: an option reaches the workers that are started again as well as the first ones",
        within="rebuild",
        old="    context = _loaded(resolved, facts,",
        new="    context = _loaded(replace(resolved, enable_deterministic_inference=False), facts,",
        expected=("effective",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="an engine that was resumed runs without deterministic inference",
    ),
    Fault(
        id="resumed-drafter-reads-other-layers",
        klass="config parsing, weights, draft/target mix-up",
        origin="rule: acceptance before a release equals acceptance after the resume",
        within="rebuild",
        old="    return _executor(context, drafter, kv, loop.scheduler,",
        new=(
            "    drafter.capture = tuple(reversed(drafter.capture))\n"
            "    return _executor(context, drafter, kv, loop.scheduler,"
        ),
        expected=("acceptance",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="after a resume an EAGLE3 head reads the target's states in another order",
    ),
    Fault(
        id="released-memory-held",
        klass="KV leak / over-allocation",
        origin="rule: released memory is free",
        within="LifeCycle._drop",
        old="        del executor\n",
        new='        self.__dict__.setdefault("former", []).append(executor)\n',
        expected=("rest",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="the former weights and KV stay allocated",
    ),
    Fault(
        id="resumed-draft-without-its-weights",
        klass="config parsing, weights, draft/target mix-up",
        origin="rule: acceptance before a release equals acceptance after the resume",
        within="rebuild",
        old="    return _executor(context, drafter, kv, loop.scheduler,",
        new=('    getattr(drafter, "model").head.zero_()\n    return _executor(context, drafter, kv, loop.scheduler,'),
        expected=("acceptance",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="only the target's weights are loaded again, and the draft's memory is empty",
    ),
)
