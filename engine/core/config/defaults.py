"""The defaults: one row of `defaults.json` per automatic choice, with its reason and the gates that must pass for it.

The first row of a field whose condition holds decides. Rows are in resolution order: a row may read the requested
configuration, the facts, and values that earlier rows have chosen. Changing a default means changing one row; the
matrix accepts or rejects it by the named gates. Policy: SGLang, June 2026 (sglang#21062).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import RuleContext, Value, gram_width
from specmatrix.engine.core.config.rules.devices import DEFAULT_GRAPH_BATCH, graphless, largest_batch, on_gpu
from specmatrix.engine.core.config.rules.draft import prediction_layers
from specmatrix.engine.core.config.rules.suffix import suffix_options
from specmatrix.engine.core.draft.algorithms import Topology, tree_pool

MAX_AUTO_TOKENS: Final = 65_536
INTERVAL: Final = 256  # SGLang's mamba_track_interval
STEPS: Final = "speculative_num_steps"
TOPK: Final = "speculative_eagle_topk"
NODES: Final = "speculative_num_draft_tokens"
SHAPE: Final = (STEPS, TOPK, NODES)


@dataclass(frozen=True, slots=True)
class Default:
    """One automatic choice.

    field: a field of EngineConfig. condition: when the row applies, in words. when: the same as a predicate.
    value: the choice, or a function of the context that makes it. reason: why. evidence: gates that must pass where the
    row decides.
    """

    field: str
    condition: str
    when: Callable[[RuleContext], bool]
    value: Value | Callable[[RuleContext], Value]
    reason: str
    evidence: tuple[str, ...]


def _layered(s: RuleContext) -> bool:
    """Multi-layer drafting was requested without a depth."""
    asked = s.asked.enable_multi_layer_eagle is True and s.asked.speculative_num_steps == AUTO
    return s.traits.layered and asked


def _block_width(s: RuleContext) -> int:
    assert s.draft is not None, "a block drafter without a draft is refused before"
    if s.asked.speculative_dspark_block_size:
        return s.asked.speculative_dspark_block_size + 1
    return s.draft.block_size or 16


def _longest(s: RuleContext) -> int:
    options = suffix_options(s)
    assert options is not None
    return options.longest


def _prefers_tree(s: RuleContext) -> bool:
    chain = not s.matches or s.parallel or s.asked.speculative_confidence_threshold > 0
    return not chain and s.facts.architecture == "LlamaForCausalLM" and s.traits.topology is Topology.TREE


def _checkpoints(s: RuleContext) -> bool:
    """Whether a cached prefix could end at a checkpoint of a recurrent state."""
    return s.facts.recurrent and not s.asked.disable_radix_cache


def _interval(s: RuleContext) -> int:
    page = s.integer("page_size")
    return -(-max(INTERVAL, s.widest) // page) * page


def _pool_tokens(s: RuleContext) -> int:
    """Room for every running request at full length, at most MAX_AUTO_TOKENS, in whole pages."""
    page = s.integer("page_size")
    request = s.integer("context_length") + 2 * s.widest
    wanted = min(s.integer("max_running_requests") * request, MAX_AUTO_TOKENS)
    return -(-wanted // page) * page


# The conditions of the rows in words, and the functions that make their values.
CONDITIONS: Final[dict[str, Callable[[RuleContext], bool]]] = {
    "a GPU is visible": on_gpu,
    "on a GPU": lambda s: s.chosen["device"] == "cuda",
    "no drafter": lambda s: not s.traits.drafts,
    "multi-layer drafting": _layered,
    "adaptive steps": lambda s: s.adaptive is not None,
    "a block drafter": lambda s: s.traits.block,
    "suffix decoding": lambda s: s.traits.suffix_trees,
    "an n-gram tree": lambda s: s.traits.irregular,
    "an n-gram chain": lambda s: s.traits.irregular and s.chosen[TOPK] == 1,
    "a draft with a mask token": lambda s: s.parallel,
    "a standalone draft model": lambda s: s.traits.own_kv and not s.traits.needs_hidden,
    "a LlamaForCausalLM target and an algorithm that can draft trees, under the acceptance rule match": _prefers_tree,
    "a chain": lambda s: s.chosen[TOPK] == 1,
    "a recurrent state and a prefix cache": _checkpoints,
    "with a drafter": lambda s: s.traits.drafts,
    "max_lag is 0": lambda s: s.traits.max_lag == 0,
    "overlap scheduling disabled": lambda s: s.asked.disable_overlap_schedule,
    "a tree (topk > 1)": lambda s: s.integer(TOPK) > 1,
    "no graphs": lambda s: graphless(s) is not None,
    **dict.fromkeys(("always", "otherwise", "explicit steps", "a tree"), lambda s: True),
}
MADE: Final[dict[str, Callable[[RuleContext], Value]]] = {
    "context": lambda s: s.facts.context_length,
    "prediction_layers": prediction_layers,
    "chain_width": lambda s: s.integer(STEPS) + 1,
    "asked_steps": lambda s: s.asked_steps,
    "block_width": _block_width,
    "longest": _longest,
    "gram_steps": lambda s: gram_width(s) - 1,
    "asked_topk": lambda s: s.asked_topk,
    "gram_width": gram_width,
    "tree_width": lambda s: min(tree_pool(s.integer(STEPS), s.integer(TOPK)) + 1, 8),
    "interval": _interval,
    "largest_batch": largest_batch,
    "pool_tokens": _pool_tokens,
}


def _default(row: dict[str, Any]) -> Default:
    """A row of the table. whole: it is one of depth, topk and width of a fully automatic draft, which are chosen
    together. made: the function that makes its value."""
    condition, when = row["condition"], CONDITIONS[row["condition"]]
    value = MADE[row["made"]] if "made" in row else row["value"]
    reason = row["reason"].format(tokens=MAX_AUTO_TOKENS, interval=INTERVAL, requests=DEFAULT_GRAPH_BATCH)
    evidence = tuple(row.get("evidence", ()))
    return Default(row["field"], condition, _whole(when) if row.get("whole") else when, value, reason, evidence)


def _whole(when: Callable[[RuleContext], bool]) -> Callable[[RuleContext], bool]:
    return lambda s: s.asked.speculative_num_steps == AUTO and when(s)


ROWS: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
DEFAULTS: Final = tuple(map(_default, ROWS))


def default_for(field: str, situation: RuleContext) -> Reason:
    """The automatic value of a field and its reason; every field's last row always applies."""
    row = next(row for row in DEFAULTS if row.field == field and row.when(situation))
    value = row.value(situation) if callable(row.value) else row.value
    return Reason(field, value, row.reason, row.evidence)
