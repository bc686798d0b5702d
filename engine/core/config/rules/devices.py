"""When the configuration rules for CUDA graphs and tensor parallelism apply: where graphs cannot be used, and which
models a tp_size can split, on which machines."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Conditions, Named, RuleContext
from specmatrix.engine.core.draft.algorithms import is_registered

# The default of the largest batch size (requests) with graphs.
DEFAULT_GRAPH_BATCH: Final = 160


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


BROKEN: Final[Conditions] = {
    "graphs-impossible": lambda s: _asked(s) > 0 and graphless(s) is not None,
    "uneven-ranks": lambda s: unshared(s, s.asked.tp_size) is not None,
    "ranks-without-gpus": lambda s: on_gpu(s) and 0 < s.facts.gpus < s.asked.tp_size,
    "registered-on-ranks": lambda s: s.asked.tp_size > 1 and is_registered(s.traits.name),
}
NAMED: Final[Named] = {
    "graphless": graphless,
    "unshared": lambda s: unshared(s, s.asked.tp_size),
    "fewer_ranks": lambda s: max(size for size in range(1, s.asked.tp_size) if unshared(s, size) is None),
}
