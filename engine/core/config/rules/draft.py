"""Configuration rules for a draft: its weights, shape and timing, by its algorithm's traits; whether its checkpoint
fits the target; and multi-layer drafting (sglang's multi-layer EAGLE), where each step has its own prediction layer."""

from typing import Final

from specmatrix.engine.core.config.adaptive_file import MAX_STEPS
from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded, unread
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, FINAL, Topology
from specmatrix.engine.core.draft.tree import tree_pool

MAX_TOPK: Final = 64
MAX_DRAFT_TOKENS: Final = 256
FIX: Final = "use a draft trained for this target"
MULTI_LAYER: Final = "enable_multi_layer_eagle"
# What only a drafter reads.
DRAFT_FIELDS: Final = (
    *("speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_adaptive", "speculative_ragged_verify"),
    *("speculative_confidence_threshold", "speculative_constrained_drafts"),
)
# Why an algorithm's max_lag is 0, by its trait reads_host.
LAG_REASON: Final = {True: "reads tokens on the host", False: "does not support overlapped steps"}


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
    """Whether a draft checkpoint is named and used."""
    return s.traits.needs_draft_model and _path(s) is not None


def _block(s: RuleContext) -> int | None:
    """The draft's block size, for algorithms that draft blocks."""
    return s.draft.block_size if s.traits.block and s.draft else None


def _past_block(s: RuleContext) -> bool:
    block, width = _block(s), s.asked.speculative_num_draft_tokens
    return block is not None and isinstance(width, int) and width > block


def _threshold(s: RuleContext) -> float:
    return s.asked.speculative_confidence_threshold


def _unconstrained(s: RuleContext) -> str:
    """Why drafts cannot follow grammars; "" if they can."""
    if not s.traits.constrains:
        return f"{s.traits.name} does not choose each draft by logits after the one before it"
    return "disable_grammar_tables leaves no masks for drafts" if s.asked.disable_grammar_tables else ""


def _chains_only(s: RuleContext) -> bool:
    topk = s.asked.speculative_eagle_topk
    return s.traits.topology is Topology.CHAIN and isinstance(topk, int) and topk > 1


def _block_steps(s: RuleContext) -> bool:
    steps = s.asked.speculative_num_steps
    return s.traits.block and isinstance(steps, int) and steps != 1


DRAFTING: Final[tuple[Rule, ...]] = (
    unread(
        "nothing-to-draft",
        "draft settings have no effect without a drafter",
        DRAFT_FIELDS,
        lambda traits: traits.drafts,
        "choose a drafter",
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
    unread(
        "acceptance-unused",
        "without drafts nothing is accepted",
        ("speculative_acceptance",),
        lambda traits: traits.drafts,
        "choose a drafter",
    ),
    Rule(
        name="acceptance-of-chains",
        why="rejection sampling by q is defined for chains",
        broken=lambda s: s.traits.drafts and not s.matches and s.asked_topk > 1,
        message=lambda s: (
            f"speculative_acceptance {s.asked.speculative_acceptance} needs the distribution that drew each draft, "
            f"and a tree (topk {s.asked_topk}) has none; use topk 1 or speculative_acceptance match"
        ),
    ),
    Rule(
        name="ragged-adaptive",
        why="adaptive steps learn from rounds that verify whole drafts",
        broken=lambda s: s.asked.speculative_ragged_verify and s.adaptive is not None,
        message=lambda s: (
            "speculative_ragged_verify cannot run with speculative_adaptive, which learns from drafts that are "
            "verified whole; remove one of them"
        ),
    ),
    Rule(
        name="confidence-threshold-range",
        why="a threshold is a probability, and at 1 no draft would be verified",
        broken=lambda s: not 0.0 <= s.asked.speculative_confidence_threshold < 1.0,
        message=lambda s: (
            "speculative_confidence_threshold must be at least 0 and below 1, got "
            f"{s.asked.speculative_confidence_threshold}"
        ),
    ),
    Rule(
        name="confidence-unused",
        why="a threshold shortens rows",
        broken=lambda s: _threshold(s) > 0 and not (s.asked.speculative_ragged_verify or s.traits.suffix_trees),
        message=lambda s: (
            f"speculative_confidence_threshold {_threshold(s)} needs speculative_ragged_verify; add that flag"
        ),
    ),
    Rule(
        name="confidence-unknown",
        why="only some drafters know how likely each draft of a chain is",
        broken=lambda s: s.traits.drafts and _threshold(s) > 0 and not (s.traits.confident and s.asked_topk == 1),
        message=lambda s: (
            f"speculative_confidence_threshold {_threshold(s)} needs a chain (topk 1) of one of "
            f"{', '.join(t.name for t in ALGORITHMS if t.confident)}, got {s.traits.name} with topk {s.asked_topk}"
            + "; speculative_suffix_min_token_prob leaves out its unlikely drafts"
            * s.traits.suffix_trees
        ),
    ),
    Rule(
        name="parallel-chains",
        why="a forward over mask tokens predicts one token per step",
        broken=lambda s: s.parallel and s.asked_topk > 1,
        message=lambda s: (
            f"draft {_name(s)} predicts all steps in one forward, from mask tokens, so it drafts chains and no tree of "
            f"topk {s.asked_topk}; use speculative_eagle_topk 1 or a draft without a mask token"
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
        name="constrained-drafts-unknown",
        field="speculative_constrained_drafts",
        why="a drafter chooses each draft from logits, after the one before it, and a token table masks these",
        broken=lambda s: s.asked.speculative_constrained_drafts and s.traits.drafts and bool(_unconstrained(s)),
        message=_unconstrained,
        got=lambda s: False,
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


def _architecture(s: RuleContext) -> str | None:
    """The draft's architecture; a target with prediction layers also counts as a checkpoint of those layers."""
    if s.draft is None:
        return None
    brings = s.traits.layered and s.draft.prediction_layers and not s.draft.architecture.endswith("NextN")
    return s.draft.architecture + "NextN" if brings else s.draft.architecture


def _kinds(s: RuleContext) -> tuple[str, ...]:
    """Endings of a draft's architecture. Prediction layers continue the states of their own model's architecture."""
    own = s.facts.architecture.removesuffix("ForCausalLM") if s.traits.layered else ""
    return tuple(own + ending for ending in s.traits.draft_architectures)


def _wrong_kind(s: RuleContext) -> bool:
    endings, architecture = _kinds(s), _architecture(s)
    return architecture is not None and bool(endings) and not architecture.endswith(endings)


def _kind_sentence(s: RuleContext) -> str:
    endings = " or ".join(_kinds(s))
    return f"{s.traits.name} needs a draft architecture that ends in {endings}, but {_name(s)} is a {_architecture(s)}"


def _name(s: RuleContext) -> str:
    return s.asked.speculative_draft_model_path or s.asked.model_path


def _vocabulary(s: RuleContext) -> int | None:
    return s.draft.vocab_size if s.draft else None


def _head_width(s: RuleContext) -> int | None:
    draft = s.draft
    return draft.draft_vocab_size if draft and s.traits.needs_hidden else None


def _state_width(s: RuleContext) -> int | None:
    draft = s.draft
    return draft.target_hidden_size if draft and s.traits.needs_hidden else None


def _tokenizers_differ(s: RuleContext) -> bool:
    draft = s.draft
    hashes = (draft.tokenizer_hash if draft else None, s.facts.tokenizer_hash)
    return None not in hashes and hashes[0] != hashes[1]


def _tokenizer_unknown(s: RuleContext) -> bool:
    """A draft that reads no target states has its own embedding, so only its tokenizer defines its token ids."""
    draft = s.draft
    if draft is None or s.traits.needs_hidden or s.facts.tokenizer_hash is None:
        return False
    return draft.tokenizer_hash is None


def _missing_layers(s: RuleContext) -> list[int]:
    draft = s.draft
    layers = draft.aux_layers if draft and s.traits.needs_hidden else ()
    return [layer for layer in layers if layer != FINAL and not 0 <= layer <= s.facts.num_layers]


def _mask(s: RuleContext) -> int | None:
    return s.draft.mask_token if s.draft else None


PAIRING: Final[tuple[Rule, ...]] = (
    Rule(
        "draft-of-wrong-kind",
        "each algorithm supports certain draft architectures",
        _wrong_kind,
        _kind_sentence,
    ),
    Rule(
        "vocabularies-differ",
        "drafted token ids are compared with the target's",
        lambda s: _vocabulary(s) not in (None, s.facts.vocab_size),
        lambda s: (
            f"the draft's vocabulary has {_vocabulary(s)} tokens, the target's has {s.facts.vocab_size}; "
            f"{s.traits.name} needs a draft with the target's vocabulary"
        ),
    ),
    Rule(
        "draft-head-too-wide",
        "every draft token id must map to a target token id",
        lambda s: (_head_width(s) or 0) > s.facts.vocab_size,
        lambda s: f"the draft's head has {_head_width(s)} tokens, more than the target's {s.facts.vocab_size}; {FIX}",
    ),
    Rule(
        "tokenizers-differ",
        "a token id must mean the same text in draft and target",
        _tokenizers_differ,
        lambda s: f"the tokenizer of draft {_name(s)} differs from that of {s.asked.model_path}; {FIX}",
    ),
    Rule(
        "tokenizer-unknown",
        "a language model's tokenizer defines its token ids",
        _tokenizer_unknown,
        lambda s: (
            f"draft {_name(s)} has no tokenizer, so its token ids cannot be compared with the target's; "
            "put its tokenizer.json into its folder"
        ),
    ),
    Rule(
        "hidden-widths-differ",
        "the draft reads the target's hidden states",
        lambda s: _state_width(s) not in (None, s.facts.hidden_size),
        lambda s: (
            f"the draft reads hidden states of width {_state_width(s)}, but the target's have width "
            f"{s.facts.hidden_size}; {FIX}"
        ),
    ),
    Rule(
        "aux-layer-missing",
        "the draft reads the input states of certain target layers, or the last layer's output",
        lambda s: bool(_missing_layers(s)),
        lambda s: (
            f"the draft reads the input state of layer {_missing_layers(s)[0]}, but the target has "
            f"{s.facts.num_layers} layers; {FIX}"
        ),
    ),
    Rule(
        "mask-token-unknown",
        "mask tokens are embedded by the target's embedding",
        lambda s: (_mask(s) or 0) >= s.facts.vocab_size,
        lambda s: (
            f"the draft's mask token {_mask(s)} has no embedding in the target, whose vocabulary has "
            f"{s.facts.vocab_size} tokens; {FIX}"
        ),
    ),
)


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
    return (Reason(MULTI_LAYER, *layer_per_step(s)),)


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
            f"{MULTI_LAYER} true needs an algorithm whose draft has a layer for each step, got {s.traits.name}; "
            f"remove it or use {_layered_names()}"
        ),
    ),
    Rule(
        name="layers-too-few",
        why="multi-layer drafting is at most as deep as the draft has layers",
        broken=_deeper,
        message=lambda s: (
            f"speculative_num_steps {s.asked.speculative_num_steps} is more than the draft's {prediction_layers(s)} "
            f"layers with {MULTI_LAYER} true; use a value between 1 and {prediction_layers(s)}, or {MULTI_LAYER} false"
        ),
    ),
    Rule(
        name="layers-in-a-chain",
        why="multi-layer drafting drafts a chain",
        broken=lambda s: _forced(s) and s.asked_topk > 1,
        message=lambda s: (
            f"speculative_eagle_topk {s.asked_topk} is a tree, but {MULTI_LAYER} true drafts chains; use 1, or "
            f"{MULTI_LAYER} false"
        ),
    ),
)
