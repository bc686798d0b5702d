"""Configuration rules for a draft's weights, shape and timing, based on its algorithm's traits."""

from typing import Final

from specmatrix.engine.core.config.adaptive_file import MAX_STEPS
from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded
from specmatrix.engine.core.draft.algorithms import Topology
from specmatrix.engine.core.draft.tree import tree_pool

MAX_TOPK: Final = 64
MAX_DRAFT_TOKENS: Final = 256
# Why an algorithm's max_lag is 0, by its trait reads_host.
LAG_REASON: Final = {True: "reads tokens on the host", False: "does not support overlapped steps"}


def _draft_values(s: RuleContext) -> list[tuple[str, object]]:
    """Explicit values that only a drafter uses."""
    named = (
        ("speculative_draft_model_path", s.asked.speculative_draft_model_path),
        ("speculative_num_steps", s.asked.speculative_num_steps),
        ("speculative_eagle_topk", s.asked.speculative_eagle_topk),
        ("speculative_num_draft_tokens", s.asked.speculative_num_draft_tokens),
        ("speculative_adaptive", s.asked.speculative_adaptive or None),
    )
    return [(name, value) for name, value in named if value not in (AUTO, None)]


def _pool(s: RuleContext) -> int | None:
    """Candidates of the requested tree; None for a chain, an automatic depth or a tree without a candidate pool."""
    steps = s.asked.speculative_num_steps
    if not isinstance(steps, int) or s.asked_topk <= 1 or s.traits.irregular or s.traits.block:
        return None
    return tree_pool(steps, s.asked_topk)


def _too_wide(s: RuleContext) -> bool:
    pool, width = _pool(s), s.asked.speculative_num_draft_tokens
    return s.traits.drafts and pool is not None and isinstance(width, int) and width - 1 > pool


def _chain_width(s: RuleContext) -> int:
    return (s.asked_steps or 0) + 1


def _uneven_chain(s: RuleContext) -> bool:
    width = s.asked.speculative_num_draft_tokens
    explicit = s.asked_steps is not None and isinstance(width, int)
    counted = s.traits.drafts and not s.traits.block
    return counted and explicit and s.asked_topk == 1 and width != _chain_width(s)


def _path(s: RuleContext) -> str | None:
    return s.asked.speculative_draft_model_path


def _named(s: RuleContext) -> bool:
    """A draft checkpoint is named and used."""
    return s.traits.needs_draft_model and _path(s) is not None


def _block(s: RuleContext) -> int | None:
    """The draft's block size, for algorithms that draft blocks."""
    return s.draft.block_size if s.traits.block and s.draft else None


def _past_block(s: RuleContext) -> bool:
    block, width = _block(s), s.asked.speculative_num_draft_tokens
    return block is not None and isinstance(width, int) and width > block


def _chains_only(s: RuleContext) -> bool:
    topk = s.asked.speculative_eagle_topk
    return s.traits.topology is Topology.CHAIN and isinstance(topk, int) and topk > 1


def _block_steps(s: RuleContext) -> bool:
    steps = s.asked.speculative_num_steps
    return s.traits.block and isinstance(steps, int) and steps != 1


DRAFTING: Final[tuple[Rule, ...]] = (
    Rule(
        name="nothing-to-draft",
        why="draft settings have no effect without a drafter",
        broken=lambda s: not s.traits.drafts and bool(_draft_values(s)),
        message=lambda s: (
            f"{_draft_values(s)[0][0]} {_draft_values(s)[0][1]} has no effect with speculative_algorithm "
            f"{s.traits.name}; remove it or choose a drafter"
        ),
    ),
    Rule(
        name="draft-path-missing",
        why="the drafter has its own weights",
        broken=lambda s: s.traits.draft_weights == "checkpoint" and _path(s) is None,
        message=lambda s: (
            f"speculative_algorithm {s.traits.name} needs a draft checkpoint; set speculative_draft_model_path"
        ),
    ),
    Rule(
        name="draft-path-unread",
        why="the drafter has no weights",
        broken=lambda s: s.traits.drafts and not s.traits.needs_draft_model and _path(s) is not None,
        message=lambda s: (
            f"speculative_algorithm {s.traits.name} uses no draft checkpoint; remove speculative_draft_model_path "
            f"{_path(s)}"
        ),
    ),
    Rule(
        name="nothing-bundled",
        why="the drafter's layers are in the target's checkpoint or in a named one",
        broken=lambda s: s.traits.draft_weights == "bundled" and _path(s) is None and s.facts.bundled is None,
        message=lambda s: (
            f"speculative_algorithm {s.traits.name} drafts with prediction layers from the target's checkpoint, and "
            f"{s.asked.model_path} ({s.facts.architecture}) has none; set speculative_draft_model_path"
        ),
    ),
    Rule(
        name="draft-unread",
        why="an unread draft cannot be checked against its target",
        broken=lambda s: _named(s) and s.draft is None,
        message=lambda s: f"the draft at {_path(s)} was not read; put its config.json into the facts first",
    ),
    Rule(
        name="steps-auto-alone",
        why="depth, topk and width are chosen together",
        broken=lambda s: (
            s.traits.drafts
            and not (s.traits.block or s.traits.irregular)
            and s.asked_steps is None
            and (s.asked.speculative_eagle_topk, s.asked.speculative_num_draft_tokens) != (AUTO, AUTO)
        ),
        message=lambda s: (
            "speculative_num_steps auto needs speculative_eagle_topk and speculative_num_draft_tokens auto too, got "
            f"{s.asked.speculative_eagle_topk} and {s.asked.speculative_num_draft_tokens}; set speculative_num_steps"
        ),
    ),
    bounded("speculative_num_steps", 1, MAX_STEPS, "a draft is at least one step deep"),
    bounded("speculative_eagle_topk", 1, MAX_TOPK, "each step scores topk * topk candidates"),
    bounded("speculative_num_draft_tokens", 2, MAX_DRAFT_TOKENS, "the root and at least one draft are verified"),
    Rule(
        name="tree-too-wide",
        why="a tree of this depth and topk has fewer nodes than the requested width",
        broken=_too_wide,
        message=lambda s: (
            f"speculative_num_draft_tokens {s.asked.speculative_num_draft_tokens} is more than the root and the "
            f"{_pool(s)} candidates of {s.asked.speculative_num_steps} steps with topk {s.asked_topk}; "
            f"use a value between 2 and {(_pool(s) or 0) + 1}"
        ),
    ),
    Rule(
        name="block-too-wide",
        why="the draft was trained for its own block size",
        broken=_past_block,
        message=lambda s: (
            f"speculative_num_draft_tokens {s.asked.speculative_num_draft_tokens} is more than the draft's block size, "
            f"{_block(s)}; use a value between 2 and {_block(s)}"
        ),
    ),
)
SHAPES: Final[tuple[Rule, ...]] = (
    Rule(
        name="chain-width",
        field="speculative_num_draft_tokens",
        why="a chain verifies its root and one token per step",
        broken=_uneven_chain,
        message=lambda s: f"a chain (topk 1) of {s.asked_steps} steps verifies {_chain_width(s)} tokens",
        got=_chain_width,
    ),
    Rule(
        name="block-steps",
        field="speculative_num_steps",
        why="a block is drafted in one step",
        broken=_block_steps,
        message=lambda s: f"{s.traits.name} drafts a whole block in one step",
        got=lambda s: 1,
    ),
    Rule(
        name="chains-only",
        field="speculative_eagle_topk",
        why="the algorithm proposes one token per step",
        broken=_chains_only,
        message=lambda s: f"{s.traits.name} drafts chains, not trees",
        got=lambda s: 1,
    ),
    Rule(
        name="no-step-in-flight",
        field="spec_version",
        why="tokens that a drafter reads on the host must be resolved first",
        broken=lambda s: s.traits.max_lag == 0 and s.asked.spec_version == "v2",
        message=lambda s: (
            f"{s.traits.name} {LAG_REASON[s.traits.reads_host]}, so each step is resolved before the next"
        ),
        got=lambda s: "v1",
    ),
)
