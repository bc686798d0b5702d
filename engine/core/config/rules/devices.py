"""Configuration rules for CUDA graphs and tensor parallelism: when graphs cannot be used, and which models a tp_size
can split, on which machines."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded
from specmatrix.engine.core.draft.algorithms import is_registered

# Largest batch size (requests) with graphs: by default, and at most.
DEFAULT_GRAPH_BATCH: Final = 160
MAX_GRAPH_BATCH: Final = 1024
MAX_RANKS: Final = 64


def on_gpu(s: RuleContext) -> bool:
    """Whether the engine will run on a GPU."""
    if s.asked.device == AUTO:
        return s.facts.device_kind == "cuda" and s.facts.gpus > 0
    return s.asked.device == "cuda"


def graphless(s: RuleContext) -> str | None:
    """Why rounds cannot run as CUDA graphs; None if they can."""
    if not on_gpu(s):
        return "CUDA graphs need a GPU"
    if s.asked.disable_cuda_graph:
        return "CUDA graphs are disabled"
    if s.traits.reads_host:
        return f"{s.traits.name} reads tokens on the host in every round"
    if is_registered(s.traits.name):
        return "a registered drafter may do work that a graph cannot capture"
    return None


def largest_batch(s: RuleContext) -> int:
    """The default for the largest batch size with graphs."""
    return min(s.integer("max_running_requests"), DEFAULT_GRAPH_BATCH)


def _asked(s: RuleContext) -> int:
    return 0 if s.asked.cuda_graph_max_bs == AUTO else s.asked.cuda_graph_max_bs


GRAPHING: Final[tuple[Rule, ...]] = (
    bounded("cuda_graph_max_bs", 0, MAX_GRAPH_BATCH, "0 disables CUDA graphs"),
    bounded("cuda_graph_max_gb", 1, 1024, "all graphs share this memory", unit="GiB"),
    Rule(
        name="graphs-impossible",
        field="cuda_graph_max_bs",
        why="CUDA graphs need a GPU and rounds that run without the host",
        broken=lambda s: _asked(s) > 0 and graphless(s) is not None,
        message=lambda s: f"{graphless(s)}, so rounds run without graphs",
        got=lambda s: 0,
    ),
)


def unshared(s: RuleContext, ranks: int) -> str | None:
    """The part of the target that `ranks` cannot split evenly, in words; None if they can split all of it.

    Heads are split, or replicated where there are fewer heads than ranks; intermediate sizes and the heads of recurrent
    states can only be split.
    """
    if ranks < 2:
        return None
    if s.facts.state_heads % ranks:
        return f"{s.facts.state_heads} key heads of recurrent layers, which is not a multiple of it"
    heads = (("attention heads", s.facts.heads), ("key-value heads", s.facts.kv_heads))
    for name, count in heads:
        if count % ranks and ranks % count:
            return f"{count} {name}, which is neither a multiple nor a divisor of it"
    for width in s.facts.widths:
        if width % ranks:
            return f"feed-forward layers of intermediate size {width}, which is not a multiple of it"
    return None


SPLITTING: Final[tuple[Rule, ...]] = (
    bounded("tp_size", 1, MAX_RANKS, "each rank is a process", unit="ranks"),
    Rule(
        name="uneven-ranks",
        why="every rank holds an equal part of the model",
        broken=lambda s: unshared(s, s.asked.tp_size) is not None,
        message=lambda s: (
            f"tp_size {s.asked.tp_size} cannot split a target with {unshared(s, s.asked.tp_size)}; use tp_size "
            f"{max(size for size in range(1, s.asked.tp_size) if unshared(s, size) is None)}"
        ),
    ),
    Rule(
        name="ranks-without-gpus",
        why="each rank needs its own GPU",
        broken=lambda s: on_gpu(s) and 0 < s.facts.gpus < s.asked.tp_size,
        message=lambda s: (
            f"tp_size {s.asked.tp_size} needs as many GPUs, but the number of visible GPUs is {s.facts.gpus}; use a "
            "smaller tp_size, or device cpu"
        ),
    ),
    Rule(
        name="registered-on-ranks",
        why="a registered algorithm exists only in the process that registered it",
        broken=lambda s: s.asked.tp_size > 1 and is_registered(s.traits.name),
        message=lambda s: (
            f"tp_size {s.asked.tp_size} cannot run {s.traits.name}, which is registered in one process only; "
            "use tp_size 1"
        ),
    ),
)
