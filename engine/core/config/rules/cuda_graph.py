"""Configuration rules for CUDA graphs: when they cannot be used, and the largest batch size that has them."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded
from specmatrix.engine.core.draft.algorithms import is_registered

FIELD: Final = "cuda_graph_max_bs"
# Largest batch size (requests) with graphs: by default, and at most.
MOST: Final = 160
LARGEST: Final = 1024


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
    return min(s.integer("max_running_requests"), MOST)


def _asked(s: RuleContext) -> int:
    return 0 if s.asked.cuda_graph_max_bs == AUTO else s.asked.cuda_graph_max_bs


GRAPHING: Final[tuple[Rule, ...]] = (
    bounded(FIELD, 0, LARGEST, "0 disables CUDA graphs"),
    bounded("cuda_graph_max_gb", 1, 1024, "all graphs share this memory", unit="GiB"),
    Rule(
        name="graphs-impossible",
        field=FIELD,
        why="CUDA graphs need a GPU and rounds that run without the host",
        broken=lambda s: _asked(s) > 0 and graphless(s) is not None,
        message=lambda s: f"{graphless(s)}, so rounds run without graphs",
        got=lambda s: 0,
    ),
)
