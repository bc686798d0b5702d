"""Configuration rules for multi-layer drafting (sglang's multi-layer EAGLE): each step has its own prediction layer."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Rule, RuleContext
from specmatrix.engine.core.draft.algorithms import ALGORITHMS

FIELD: Final = "enable_multi_layer_eagle"


def prediction_layers(s: RuleContext) -> int:
    """How many of the draft's layers could draft one step each, at least 1."""
    return max(1, s.draft.prediction_layers if s.draft else 1)


def layer_per_step(s: RuleContext) -> tuple[bool, str]:
    """Whether each step has its own layer, by the chosen values, and why."""
    layers, steps = prediction_layers(s), s.integer("speculative_num_steps")
    asked = s.asked.enable_multi_layer_eagle
    if asked != AUTO:
        return asked, "as requested"
    if layers == 1:
        return False, "the draft has a single layer, which is applied repeatedly"
    if s.adaptive is not None:
        return False, "adaptive steps change the depth, so the first layer is applied repeatedly"
    if s.integer("speculative_eagle_topk") > 1 or steps > layers:
        return False, "a tree, or a depth beyond the draft's layers, is drafted by the first layer alone"
    return True, "the draft has a layer for each step of the chain"


def layer_reasons(s: RuleContext) -> tuple[Reason, ...]:
    """The reason for the automatic choice, if it applies."""
    if not s.traits.layered or s.asked.enable_multi_layer_eagle != AUTO:
        return ()
    return (Reason(FIELD, *layer_per_step(s)),)


def _forced(s: RuleContext) -> bool:
    return s.traits.layered and s.asked.enable_multi_layer_eagle is True


def _deeper(s: RuleContext) -> bool:
    steps = s.asked.speculative_num_steps
    return _forced(s) and steps != AUTO and steps > prediction_layers(s)


def _layered_names() -> str:
    return ", ".join(traits.name for traits in ALGORITHMS if traits.layered)


LAYERING: Final[tuple[Rule, ...]] = (
    Rule(
        name="layers-of-no-use",
        why="only a draft with several prediction layers has one for each step",
        broken=lambda s: not s.traits.layered and s.asked.enable_multi_layer_eagle is True,
        message=lambda s: (
            f"{FIELD} true needs an algorithm whose draft has a layer for each step, got {s.traits.name}; "
            f"remove it or use {_layered_names()}"
        ),
    ),
    Rule(
        name="layers-too-few",
        why="multi-layer drafting is at most as deep as the draft has layers",
        broken=_deeper,
        message=lambda s: (
            f"speculative_num_steps {s.asked.speculative_num_steps} is more than the draft's {prediction_layers(s)} "
            f"layers with {FIELD} true; use a value between 1 and {prediction_layers(s)}, or {FIELD} false"
        ),
    ),
    Rule(
        name="layers-in-a-chain",
        why="multi-layer drafting drafts a chain",
        broken=lambda s: _forced(s) and s.asked_topk > 1,
        message=lambda s: (
            f"speculative_eagle_topk {s.asked_topk} is a tree, but {FIELD} true drafts chains; use 1, or {FIELD} false"
        ),
    ),
)
