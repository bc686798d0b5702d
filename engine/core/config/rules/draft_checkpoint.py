"""Configuration rules that compare a draft's checkpoint with its target's."""

from typing import Final

from specmatrix.engine.core.config.context import Rule, RuleContext
from specmatrix.engine.core.draft.algorithms import FINAL

FIX: Final = "use a draft trained for this target"


def _architecture(s: RuleContext) -> str | None:
    """The draft's architecture; a target with prediction layers also counts as a checkpoint of those layers."""
    if s.draft is None:
        return None
    brings = s.traits.layered and s.draft.prediction_layers and not s.draft.architecture.endswith("NextN")
    return s.draft.architecture + "NextN" if brings else s.draft.architecture


def _wrong_kind(s: RuleContext) -> bool:
    endings, architecture = s.traits.draft_architectures, _architecture(s)
    return architecture is not None and bool(endings) and not architecture.endswith(endings)


def _kind_sentence(s: RuleContext) -> str:
    endings = " or ".join(s.traits.draft_architectures)
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
