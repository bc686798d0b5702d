"""When the configuration rules for a draft apply: for its weights, shape and timing, by its algorithm's traits; for
whether its checkpoint fits the target; and for multi-layer drafting (sglang's multi-layer EAGLE), where each step has
its own prediction layer."""

from collections.abc import Callable
from math import inf
from typing import Final

from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Conditions, Named, RuleContext, outside
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, FINAL, Topology, Traits, tree_pool

MULTI_LAYER: Final = "enable_multi_layer_eagle"


def _pool(s: RuleContext) -> int | None:
    """Candidates of the requested tree; None for a chain, an automatic depth or a tree without a candidate pool."""
    steps = s.asked.speculative_num_steps
    if not isinstance(steps, int) or s.asked_topk <= 1 or s.traits.irregular or s.traits.block:
        return None
    return tree_pool(steps, s.asked_topk)


def _wider(s: RuleContext, most: int | None) -> bool:
    """Whether the requested width is more than `most`; None: there is no limit."""
    return most is not None and outside(s.asked.speculative_num_draft_tokens, -inf, most)


def _tree_nodes(s: RuleContext) -> int | None:
    pool = _pool(s)
    return None if pool is None else pool + 1


def _chain_width(s: RuleContext) -> int:
    return (s.asked_steps or 0) + 1


def _uneven_chain(s: RuleContext) -> bool:
    width = s.asked.speculative_num_draft_tokens
    explicit = s.asked_steps is not None and isinstance(width, int)
    return not s.traits.block and explicit and s.asked_topk == 1 and width != _chain_width(s)


def _path(s: RuleContext) -> str | None:
    return s.asked.speculative_draft_model_path


def _block(s: RuleContext) -> int | None:
    """The draft's block size, for algorithms that draft blocks."""
    return s.draft.block_size if s.draft else None


def _threshold(s: RuleContext) -> float:
    return s.asked.speculative_confidence_threshold


def _unconstrained(s: RuleContext) -> str:
    """Why drafts cannot follow grammars; "" if they can."""
    if not s.traits.constrains:
        return f"{s.traits.name} does not choose each draft by logits after the one before it"
    return "disable_grammar_tables leaves no masks for drafts" if s.asked.disable_grammar_tables else ""


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


def _tokenizers_differ(s: RuleContext) -> bool:
    hashes = (s.draft.tokenizer_hash if s.draft else None, s.facts.tokenizer_hash)
    return None not in hashes and hashes[0] != hashes[1]


def _tokenizer_unknown(s: RuleContext) -> bool:
    """A draft that reads no target states has its own embedding, so only its tokenizer defines its token ids."""
    if s.draft is None or s.traits.needs_hidden or s.facts.tokenizer_hash is None:
        return False
    return s.draft.tokenizer_hash is None


def _missing_layers(s: RuleContext) -> list[int]:
    layers = s.draft.aux_layers if s.draft else ()
    return [layer for layer in layers if layer != FINAL and not 0 <= layer <= s.facts.num_layers]


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
    return s.asked.enable_multi_layer_eagle is True


def _alone(s: RuleContext) -> bool:
    """Whether topk or width is requested without a depth, of which none follows from the others."""
    others = s.asked.speculative_eagle_topk, s.asked.speculative_num_draft_tokens
    return not (s.traits.block or s.traits.irregular) and s.asked_steps is None and others != (AUTO, AUTO)


def named(which: Callable[[Traits], bool]) -> str:
    """The names of the algorithms with a trait."""
    return ", ".join(traits.name for traits in ALGORITHMS if which(traits))


BROKEN: Final[Conditions] = {
    "draft-path-missing": lambda s: s.traits.draft_weights == "checkpoint" and _path(s) is None,
    "draft-path-unread": lambda s: not s.traits.needs_draft_model and _path(s) is not None,
    "nothing-bundled": lambda s: s.traits.draft_weights == "bundled" and _path(s) is None and s.facts.bundled is None,
    "draft-unread": lambda s: s.traits.needs_draft_model and _path(s) is not None and s.draft is None,
    "steps-auto-alone": _alone,
    "tree-too-wide": lambda s: _wider(s, _tree_nodes(s)),
    "acceptance-of-chains": lambda s: not s.matches and s.asked_topk > 1,
    "ragged-adaptive": lambda s: s.asked.speculative_ragged_verify and s.adaptive is not None,
    "confidence-threshold-range": lambda s: not 0.0 <= _threshold(s) < 1.0,
    "confidence-unused": lambda s: (
        _threshold(s) > 0 and not (s.asked.speculative_ragged_verify or s.traits.suffix_trees)
    ),
    "confidence-unknown": lambda s: _threshold(s) > 0 and not (s.traits.confident and s.asked_topk == 1),
    "parallel-chains": lambda s: s.parallel and s.asked_topk > 1,
    "block-too-wide": lambda s: _wider(s, _block(s)),
    "chain-width": _uneven_chain,
    "constrained-drafts-unknown": lambda s: s.asked.speculative_constrained_drafts and bool(_unconstrained(s)),
    "block-steps": lambda s: s.asked.speculative_num_steps not in (AUTO, 1),
    "chains-only": lambda s: s.traits.topology is Topology.CHAIN and outside(s.asked.speculative_eagle_topk, -inf, 1),
    "no-step-in-flight": lambda s: s.traits.max_lag == 0 and s.asked.spec_version == "v2",
    "draft-of-wrong-kind": _wrong_kind,
    "vocabularies-differ": lambda s: s.draft is not None and s.draft.vocab_size != s.facts.vocab_size,
    "draft-head-too-wide": lambda s: s.draft is not None and (s.draft.draft_vocab_size or 0) > s.facts.vocab_size,
    "tokenizers-differ": _tokenizers_differ,
    "tokenizer-unknown": _tokenizer_unknown,
    "hidden-widths-differ": lambda s: (
        s.draft is not None and s.draft.target_hidden_size not in (None, s.facts.hidden_size)
    ),
    "aux-layer-missing": lambda s: bool(_missing_layers(s)),
    "mask-token-unknown": lambda s: s.draft is not None and (s.draft.mask_token or 0) >= s.facts.vocab_size,
    "layers-of-no-use": lambda s: not s.traits.layered and _forced(s),
    "layers-too-few": lambda s: _forced(s) and outside(s.asked.speculative_num_steps, -inf, prediction_layers(s)),
    "layers-in-a-chain": lambda s: _forced(s) and s.asked_topk > 1,
}
NAMED: Final[Named] = {
    "pool": _pool,
    "pool_nodes": _tree_nodes,
    "block": _block,
    "chain_width": _chain_width,
    "unconstrained": _unconstrained,
    "confident": lambda s: named(lambda traits: traits.confident),
    "layered": lambda s: named(lambda traits: traits.layered),
    "likely_suffixes": lambda s: (
        "; speculative_suffix_min_token_prob leaves out its unlikely drafts" if s.traits.suffix_trees else ""
    ),
    "lag_reason": lambda s: "reads tokens on the host" if s.traits.reads_host else "does not support overlapped steps",
    "endings": lambda s: " or ".join(_kinds(s)),
    "draft_name": lambda s: _path(s) or s.asked.model_path,
    "draft_architecture": _architecture,
    "missing_layers": _missing_layers,
    "prediction_layers": prediction_layers,
}
