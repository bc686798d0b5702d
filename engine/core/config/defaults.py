"""The defaults: one row per automatic choice, with its reason and the gates that must pass for it.

The first row of a field whose condition holds decides. Rows are in resolution order: a row may read the requested
configuration, the facts, and values that earlier rows have chosen. Changing a default means changing one row; the
matrix accepts or rejects it by the named gates. Policy: SGLang, June 2026 (sglang#21062).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import RuleContext, Value, gram_width
from specmatrix.engine.core.config.rules.devices import DEFAULT_GRAPH_BATCH, graphless, largest_batch, on_gpu
from specmatrix.engine.core.config.rules.draft import prediction_layers
from specmatrix.engine.core.config.rules.suffix import suffix_options
from specmatrix.engine.core.draft.algorithms import Topology
from specmatrix.engine.core.draft.tree import tree_pool

SPEED_GATES: Final = ("lossless", "acceptance")
TIMING_GATES: Final = ("lossless", "ledger", "effective")
MAX_AUTO_TOKENS: Final = 65_536
INTERVAL: Final = 256  # SGLang's mamba_track_interval


STEPS: Final = "speculative_num_steps"
TOPK: Final = "speculative_eagle_topk"
NODES: Final = "speculative_num_draft_tokens"
SHAPE: Final = (STEPS, TOPK, NODES)
CHAIN: Final = "a chain verifies its root and one token per step"


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
    evidence: tuple[str, ...] = ()


def _always(s: RuleContext) -> bool:
    return True


def _shape(
    condition: str, when: Callable[[RuleContext], bool], shape: tuple[int, int, int], reason: str
) -> tuple[Default, ...]:
    """Depth, topk and width of a fully automatic draft, which are chosen together."""

    def applies(s: RuleContext) -> bool:
        return s.asked.speculative_num_steps == AUTO and when(s)

    pairs = zip((STEPS, TOPK, NODES), shape, strict=True)
    return tuple(Default(name, condition, applies, value, reason, SPEED_GATES) for name, value in pairs)


def _adaptive(s: RuleContext) -> bool:
    return s.adaptive is not None


def _layered(s: RuleContext) -> bool:
    """Multi-layer drafting was requested without a depth."""
    asked = s.asked.enable_multi_layer_eagle is True and s.asked.speculative_num_steps == AUTO
    return s.traits.layered and asked


def _block(s: RuleContext) -> bool:
    return s.traits.block


def _block_width(s: RuleContext) -> int:
    assert s.draft is not None, "a block drafter without a draft is refused before"
    if s.asked.speculative_dspark_block_size:
        return s.asked.speculative_dspark_block_size + 1
    return s.draft.block_size or 16


def _irregular(s: RuleContext) -> bool:
    return s.traits.irregular


def _chain(s: RuleContext) -> bool:
    return s.chosen[TOPK] == 1


def _longest(s: RuleContext) -> int:
    options = suffix_options(s)
    assert options is not None
    return options.longest


def _chain_width(s: RuleContext) -> int:
    return s.integer(STEPS) + 1


def _tree_width(s: RuleContext) -> int:
    return min(tree_pool(s.integer(STEPS), s.integer(TOPK)) + 1, 8)


def _tree_by_default(s: RuleContext) -> bool:
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


DEFAULTS: Final[tuple[Default, ...]] = (
    Default("device", "a GPU is visible", on_gpu, "cuda", "a GPU is visible"),
    Default("device", "otherwise", _always, "cpu", "no GPU is visible"),
    Default(
        "dtype",
        "on a GPU",
        lambda s: s.chosen["device"] == "cuda",
        "bfloat16",
        "16-bit floats are the fastest on GPUs",
        ("lossless", "accuracy"),
    ),
    Default("dtype", "otherwise", _always, "float32", "float32 is exact and the fastest on CPUs"),
    Default("context_length", "always", _always, lambda s: s.facts.context_length, "the model's context length"),
    Default("page_size", "always", _always, 1, "single-token pages waste no memory"),
    *_shape(
        "no drafter",
        lambda s: not s.traits.drafts,
        (0, 0, 1),
        "without a drafter each step verifies only the last token",
    ),
    Default(
        STEPS,
        "multi-layer drafting",
        _layered,
        prediction_layers,
        "multi-layer drafting is as deep as the draft has layers",
        SPEED_GATES,
    ),
    Default(TOPK, "multi-layer drafting", _layered, 1, "multi-layer drafting drafts a chain"),
    Default(NODES, "multi-layer drafting", _layered, _chain_width, CHAIN),
    Default(
        STEPS,
        "adaptive steps",
        _adaptive,
        lambda s: s.asked_steps,
        "adaptive steps start at the middle candidate",
        SPEED_GATES,
    ),
    Default(TOPK, "adaptive steps", _adaptive, 1, "adaptive steps draft chains"),
    Default(NODES, "adaptive steps", _adaptive, _chain_width, CHAIN),
    Default(STEPS, "a block drafter", _block, 1, "a block drafter drafts the whole block in one step"),
    Default(TOPK, "a block drafter", _block, 1, "a block is a chain"),
    Default(
        NODES,
        "a block drafter",
        _block,
        _block_width,
        "the verify width is the draft's block size, 16 if its checkpoint does not set one",
        SPEED_GATES,
    ),
    Default(
        STEPS,
        "suffix decoding",
        lambda s: s.traits.suffix_trees,
        _longest,
        "no draft is longer: it is bounded by its match, and fits a path of the tree behind it",
        SPEED_GATES,
    ),
    Default(TOPK, "suffix decoding", lambda s: s.traits.suffix_trees, 1, "suffix decoding drafts chains"),
    Default(NODES, "suffix decoding", lambda s: s.traits.suffix_trees, _chain_width, CHAIN),
    Default(
        STEPS,
        "an n-gram tree",
        _irregular,
        lambda s: gram_width(s) - 1,
        "an n-gram tree may use all its nodes on one path",
        SPEED_GATES,
    ),
    Default(TOPK, "an n-gram tree", _irregular, lambda s: s.asked_topk, "topk is the n-gram breadth", SPEED_GATES),
    Default(NODES, "an n-gram chain", lambda s: _irregular(s) and _chain(s), _chain_width, CHAIN),
    Default(
        NODES,
        "an n-gram tree",
        _irregular,
        gram_width,
        "an n-gram tree has 12 nodes, or fewer if its depth and topk allow no more",
        SPEED_GATES,
    ),
    *_shape(
        "a draft with a mask token",
        lambda s: s.parallel,
        (7, 1, 8),
        "all steps are drafted in one forward, so a longer chain costs little",
    ),
    *_shape(
        "a standalone draft model",
        lambda s: s.traits.own_kv and not s.traits.needs_hidden,
        (3, 1, 4),
        "each step runs the whole draft model, so a short chain is the fastest",
    ),
    *_shape(
        "a LlamaForCausalLM target and an algorithm that can draft trees, under the acceptance rule match",
        _tree_by_default,
        (5, 4, 8),
        "Llama targets default to a tree of 5 steps, topk 4, 8 draft tokens",
    ),
    *_shape("otherwise", _always, (3, 1, 4), "targets default to a chain of 3 steps"),
    Default(TOPK, "explicit steps", _always, 1, "explicit steps without topk mean a chain"),
    Default(NODES, "a chain", _chain, _chain_width, CHAIN),
    Default(NODES, "a tree", _always, _tree_width, "a tree verifies its root and its best candidates, at most 8 nodes"),
    Default(
        "state_interval",
        "a recurrent state and a prefix cache",
        _checkpoints,
        _interval,
        f"a checkpoint every {INTERVAL} tokens, or the next multiple of the page size, but not within a round",
    ),
    Default("state_interval", "otherwise", _always, 0, "no prefix ends at a checkpoint of a recurrent state"),
    Default(
        "max_running_requests",
        "with a drafter",
        lambda s: s.traits.drafts,
        48,
        "speculation defaults to 48 running requests (sglang#21062); set max_running_requests to change it",
    ),
    Default("max_running_requests", "otherwise", _always, 64, "plain decoding defaults to 64 running requests"),
    Default("chunked_prefill_size", "always", _always, 2048, "prompts longer than 2048 tokens are prefilled in chunks"),
    Default(
        "spec_version",
        "max_lag is 0",
        lambda s: s.traits.max_lag == 0,
        "v1",
        "the drafter needs each step's result before the next step",
    ),
    Default(
        "spec_version",
        "overlap scheduling disabled",
        lambda s: s.asked.disable_overlap_schedule,
        "v1",
        "overlap scheduling is disabled, so steps run synchronously",
    ),
    Default(
        "spec_version",
        "a tree (topk > 1)",
        lambda s: s.integer(TOPK) > 1,
        "v1",
        "trees (topk > 1) default to v1; set spec_version v2 to overlap them",
        TIMING_GATES,
    ),
    Default("spec_version", "otherwise", _always, "v2", "overlap scheduling is the default", TIMING_GATES),
    Default(
        "cuda_graph_max_bs",
        "no graphs",
        lambda s: graphless(s) is not None,
        0,
        "CUDA graphs need a GPU and rounds that run without the host",
    ),
    Default(
        "cuda_graph_max_bs",
        "otherwise",
        _always,
        largest_batch,
        f"all batch sizes up to max_running_requests run as CUDA graphs, at most {DEFAULT_GRAPH_BATCH} requests",
        TIMING_GATES,
    ),
    Default(
        "max_total_tokens",
        "always",
        _always,
        _pool_tokens,
        f"room for every running request at full length, at most {MAX_AUTO_TOKENS} tokens",
    ),
)


def default_for(field: str, situation: RuleContext) -> Reason:
    """The automatic value of a field and its reason; every field's last row always applies."""
    row = next(row for row in DEFAULTS if row.field == field and row.when(situation))
    value = row.value(situation) if callable(row.value) else row.value
    return Reason(field, value, row.reason, row.evidence)
