"""The launch rules about CUDA graphs: which engines have none, and how large a batch one is made for."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded
from specmatrix.engine.core.draft.algorithms import is_registered

FIELD: Final = "cuda_graph_max_bs"
# Requests of the largest batch that has graphs unless asked otherwise, and of any.
MOST: Final = 160
LARGEST: Final = 1024


def on_gpu(s: RuleContext) -> bool:
    """Whether the engine will run on a GPU."""
    if s.asked.device == AUTO:
        return s.facts.device_kind == "cuda" and s.facts.gpus > 0
    return s.asked.device == "cuda"


def graphless(s: RuleContext) -> str | None:
    """Why no round can be a graph; None if rounds can."""
    if not on_gpu(s):
        return "only a GPU has CUDA graphs"
    if s.asked.disable_cuda_graph:
        return "CUDA graphs are disabled"
    if s.traits.reads_host:
        return f"the host steers every round of {s.traits.name}"
    if is_registered(s.traits.name):
        return "a registered drafter may do what a graph would not repeat"
    return None


def largest_batch(s: RuleContext) -> int:
    """Requests of the largest batch that has graphs, where rounds can be graphs."""
    return min(s.integer("max_running_requests"), MOST)


def _asked(s: RuleContext) -> int:
    return 0 if s.asked.cuda_graph_max_bs == AUTO else s.asked.cuda_graph_max_bs


GRAPHING: Final[tuple[Rule, ...]] = (
    bounded(FIELD, 0, LARGEST, "requests of the largest batch that is a graph, 0 for no graphs"),
    bounded("cuda_graph_max_gb", 1, 1024, "GiB that all graphs may hold; disable_cuda_graph is for no graphs"),
    Rule(
        name="graphs-impossible",
        kind="rewritten",
        field=FIELD,
        why="a graph repeats on a GPU what was captured there",
        broken=lambda s: _asked(s) > 0 and graphless(s) is not None,
        sentence=lambda s: f"{graphless(s)}, so rounds run without",
        got=lambda s: 0,
    ),
)
