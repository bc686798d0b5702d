"""Configuration rules for tensor parallelism: which models a tp_size can split, and on which machines."""

from typing import Final

from specmatrix.engine.core.config.context import Rule, RuleContext, bounded
from specmatrix.engine.core.config.rules.cuda_graph import on_gpu
from specmatrix.engine.core.draft.algorithms import is_registered

FIELD: Final = "tp_size"
MOST: Final = 64


def unshared(s: RuleContext) -> str | None:
    """The part of the target that tp_size cannot split evenly, in words; None if it can split all of it.

    Heads are split, or replicated where there are fewer heads than ranks; intermediate sizes can only be split.
    """
    ranks = s.asked.tp_size
    if ranks < 2:
        return None
    heads = (("attention heads", s.facts.heads), ("key-value heads", s.facts.kv_heads))
    for name, count in heads:
        if count % ranks and ranks % count:
            return f"{count} {name}, which is neither a multiple nor a divisor of it"
    for width in s.facts.widths:
        if width % ranks:
            return f"feed-forward layers of intermediate size {width}, which is not a multiple of it"
    return None


SPLITTING: Final[tuple[Rule, ...]] = (
    bounded(FIELD, 1, MOST, "each rank is a process", unit="ranks"),
    Rule(
        name="uneven-ranks",
        why="every rank holds an equal part of the model",
        broken=lambda s: unshared(s) is not None,
        message=lambda s: f"tp_size {s.asked.tp_size} cannot split a target with {unshared(s)}; use another tp_size",
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
