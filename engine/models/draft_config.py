"""The draft fields of a config.json, checked once and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.config_reader import MAX_INT, ConfigReader
from specmatrix.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class DFlash2Config:
    """DFLASH2's parts. taps, group: of the convolutions, channels that share a kernel. rank, candidates: of the
    selector, tokens that it chooses from."""

    taps: int
    group: int
    rank: int
    candidates: int


@dataclass(frozen=True, slots=True)
class MarkovConfig:
    """DSPARK's heads. kind: one of MARKOV_KINDS. rank: of the Markov head. confident: there is a confidence head, which
    reads the token before each draft if `seeing`."""

    kind: str
    rank: int
    confident: bool
    seeing: bool


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A draft that reads its target's hidden states.

    states: the target layers whose *input* it reads, or FINAL; None if the default of its architecture applies.
    target_hidden_size: width of one such state. vocab_size: the draft's own head.
    normed: an EAGLE-3 layer's residual stream continues from the normalised states (vLLM's speculators).
    block_size: tokens of a block, its known first one included; None for any other draft. from_anchor: the row of the
    known token predicts the first draft; else the row of each mask token predicts the token in its place.
    target_layers: how many layers its target has, None if the config does not say. dflash2: DFLASH2's
    parts. markov: DSPARK's heads.
    """

    states: tuple[int, ...] | None
    target_hidden_size: int
    vocab_size: int
    layers: int = 1
    block_size: int | None = None
    normed: bool = False
    target_layers: int | None = None
    dflash2: DFlash2Config | None = None
    from_anchor: bool = False
    markov: MarkovConfig | None = None

    def states_of(self, target_layers: int) -> tuple[int, ...]:
        """The states that the draft reads from a target with `target_layers` layers.

        A block draft that reads the last layer's output gets the state after the final norm: transformers' last hidden
        state, which z-lab's code uses.
        """
        if self.block_size is None:
            return self.states or (2, target_layers // 2, target_layers - 3)
        states = self.states or _spread(target_layers, self.layers)
        return tuple(FINAL if state == target_layers else state for state in states)


EAGLE_ARCHITECTURES: Final = ("LlamaForCausalLMEagle",)
EAGLE3_ARCHITECTURES: Final = ("LlamaForCausalLMEagle3",)
DFLASH2_ARCHITECTURES: Final = ("DFlash2DraftModel",)
DFLASH_ARCHITECTURES: Final = ("DFlashDraftModel", *DFLASH2_ARCHITECTURES)
DSPARK_ARCHITECTURES: Final = ("DSparkDraftModel",)
BLOCK_ARCHITECTURES: Final = DFLASH_ARCHITECTURES + DSPARK_ARCHITECTURES
DRAFT_ARCHITECTURES: Final = EAGLE_ARCHITECTURES + EAGLE3_ARCHITECTURES + BLOCK_ARCHITECTURES
MARKOV_KINDS: Final = ("vanilla", "gated", "rnn")
DEFAULT_DRAFTS: Final = 7  # SGLang's gamma
DEFAULT_BLOCK: Final = 16
# Norms of later EAGLE-3 heads, which this engine does not support.
UNSUPPORTED_NORMS: Final = ("norm_before_fc", "fc_norm", "norm_output")
# Fields of later DFLASH drafts, which this engine does not support; the last one is DSPARK's.
UNSUPPORTED_BLOCKS: Final = ("use_swa", "causal", "sample_from_anchor")
# Fields of a block draft's config.json that do not change what it computes: names and versions, special tokens,
# training, outputs of transformers, and a window's first layer, as windows are refused.
IGNORED: Final = (
    *("model_type", "_name_or_path", "auto_map", "transformers_version", "bos_token_id", "eos_token_id"),
    *("pad_token_id", "attention_dropout", "initializer_range", "pretraining_tp", "use_cache", "return_dict"),
    *("output_attentions", "output_hidden_states", "max_window_layers", "num_anchors"),
)
# DFLASH2's fields in dflash_config, any of which makes a draft one; the only convolution (SGLang names it); and what
# others scale by, which this engine does not support.
DFLASH2_FIELDS: Final = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "conv_type")
CONVOLUTION: Final = "grouped_dynamic_depthwise"
UNSUPPORTED_SCALES: Final = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
# The mask token of a draft that predicts all steps in one forward, by vLLM's names, and without these.
MASK_TOKENS: Final = ("pard_token", "ptd_token_id")
MASK_TOKEN: Final = "mask_token_id"
# Fields of PARD-2 drafts, which read the target's states and begin at the first token.
UNSUPPORTED_PARD2: Final = ("pard2", "pard2_target_dim", "pard2_target_layers")
NESTED: Final = ("dflash_config", "dspark_config", "text_config")
TOWERS: Final = {f"{name}ForConditionalGeneration": f"{name}ForCausalLM" for name in ("Qwen3_5", "Qwen3_5Moe")}
AUX_IDS: Final = "eagle_aux_hidden_state_layer_ids"


def read_draft(architecture: str, fields: ConfigReader) -> DraftConfig | None:
    """The draft fields of a config.json; None for a language model. ConfigError on unsupported values."""
    if architecture in EAGLE_ARCHITECTURES:
        return DraftConfig((FINAL,), fields.size("hidden_size"), fields.size("vocab_size"))
    if architecture in EAGLE3_ARCHITECTURES:
        return _eagle3(fields)
    if architecture in BLOCK_ARCHITECTURES:
        return _block(fields, architecture in DFLASH2_ARCHITECTURES, architecture in DSPARK_ARCHITECTURES)
    return None


def flat_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with the fields at the top level that a DSPARK draft, or a text model beside a vision tower, has
    nested, as that draft or text model."""
    names = raw.get("architectures")
    if names != [*DSPARK_ARCHITECTURES] and names not in ([name] for name in TOWERS):
        return raw
    nested = [name for name in NESTED if isinstance(raw.get(name), dict)]
    outer = {name: value for name, value in raw.items() if name not in nested}
    flat = {name: value for part in (outer, *(raw[name] for name in nested)) for name, value in part.items()}
    return {**flat, "architectures": [TOWERS.get(name, name) for name in names]}


def read_mask_token(architecture: str, fields: ConfigReader) -> int | None:
    """The token in place of those that are unknown to a draft of several tokens in one forward: DFLASH, P-EAGLE or
    PARD; None for others. ConfigError on unsupported values."""

    def token(fields: ConfigReader, name: str) -> int:
        return int(fields.value(name, lambda token: type(token) is int and 0 <= token <= MAX_INT, "a token id"))

    if architecture in BLOCK_ARCHITECTURES:
        own = fields.group("dflash_config") if architecture in DFLASH_ARCHITECTURES else fields
        return token(own, "mask_token_id")
    found = {name: token(fields, name) for name in MASK_TOKENS if fields.raw.get(name) is not None}
    if not fields.flag("parallel_drafting", bool(found)):
        return None
    if not found and fields.raw.get(MASK_TOKEN) is not None:
        found = {MASK_TOKEN: token(fields, MASK_TOKEN)}
    if len(set(found.values())) != 1:
        raise ConfigError(
            f"{fields.file}: parallel drafting needs one mask token, got {shown(found)}; set {' or '.join(MASK_TOKENS)}"
        )
    _refuse(fields, UNSUPPORTED_PARD2)
    if architecture in EAGLE_ARCHITECTURES:
        raise ConfigError(
            f"{fields.file}: {next(iter(found))} is not supported in an EAGLE draft; allowed in one of EAGLE3 or a "
            "language model"
        )
    return next(iter(found.values()))


def _eagle3(fields: ConfigReader) -> DraftConfig:
    eagle = fields.group("eagle_config")
    states: tuple[int, ...] | None = (FINAL,)
    if eagle.flag("use_aux_hidden_state", True):
        states = _aux_states(fields, eagle)
    for part in (fields, eagle):
        _refuse(part, UNSUPPORTED_NORMS)
    return DraftConfig(
        states,
        fields.size("target_hidden_size", fields.size("hidden_size")),
        fields.size("draft_vocab_size", fields.size("vocab_size")),
        normed=fields.flag("norm_before_residual", False),
    )


def _aux_states(fields: ConfigReader, eagle: ConfigReader) -> tuple[int, ...] | None:
    """The captured states: SGLang's nested ids name layers whose output is read, vLLM's top-level ids the states."""
    behind, named = _behind(eagle, AUX_IDS), fields.layer_ids(AUX_IDS)
    states = None if named is None else tuple(named)
    if None not in (behind, states) and behind != states:
        raise ConfigError(
            f"{fields.file}: {AUX_IDS} {shown(named)} differs from {eagle.within}{AUX_IDS}, whose layers' outputs are "
            f"the states {list(behind or ())}; both must name the same states"
        )
    return states or behind


def _refuse(fields: ConfigReader, names: tuple[str, ...]) -> None:
    for name in names:
        if fields.raw.get(name):
            raise ConfigError(f"{fields.file}: {fields.within}{name} true is not supported; it must be absent")


def _block(fields: ConfigReader, named: bool, dspark: bool) -> DraftConfig:
    own = fields if dspark else fields.group("dflash_config")
    _refuse(own, UNSUPPORTED_BLOCKS[: -1 if dspark else None])
    _refuse(fields, ("is_causal",))
    kinds = fields.value("layer_types", lambda kinds: isinstance(kinds, list), "a list", [])
    if other := [kind for kind in kinds if kind != "full_attention"]:
        raise ConfigError(f"{fields.file}: layer_types {shown(other[0])} is not supported; allowed: 'full_attention'")
    layers = fields.size("num_hidden_layers")
    # transformers' rule for Qwen3, where layer_types is absent.
    if not kinds and fields.flag("use_sliding_window", False) and fields.count("max_window_layers", 28) < layers:
        raise ConfigError(f"{fields.file}: use_sliding_window true is not supported in a DFLASH draft; allowed: false")
    if dspark:  # its block is counted without the known token
        block = 1 + fields.size("block_size", DEFAULT_DRAFTS)
    else:
        block = own.size("block_size", fields.size("block_size", DEFAULT_BLOCK, least=2), least=2)
    found = DraftConfig(
        _behind(own, "target_layer_ids"),
        fields.size("hidden_size"),
        fields.size("vocab_size"),
        layers,
        block,
        target_layers=None if fields.raw.get("num_target_layers") is None else fields.size("num_target_layers"),
        dflash2=None if dspark else _dflash2(fields, own, named),
        from_anchor=dspark and fields.flag("sample_from_anchor", True),
        markov=_markov(fields) if dspark else None,
    )
    if unknown := [name for name in fields.unread() if name not in IGNORED]:
        raise ConfigError(
            f"{fields.file}: {shown(unknown[0])} is not a known field of a {'DSPARK' if dspark else 'DFLASH'} draft "
            "and may change what it computes; remove it if it does not"
        )
    return found


def _dflash2(fields: ConfigReader, own: ConfigReader, named: bool) -> DFlash2Config | None:
    if not named and all(own.raw.get(name) is None for name in DFLASH2_FIELDS):
        return None
    hidden, vocab = fields.size("hidden_size"), fields.size("vocab_size")
    own.value("conv_type", lambda kind: kind == CONVOLUTION, f"'{CONVOLUTION}'", CONVOLUTION)
    for name in UNSUPPORTED_SCALES[:-1]:
        own.value(name, lambda scale: scale == 1, "1, as others are not supported", 1)
    own.value(UNSUPPORTED_SCALES[-1], lambda cap: cap == 0, "0 or absent, as others are not supported", 0)
    own.value("conv_group_size", lambda g: type(g) is int and g > 0 and not hidden % g, f"a divisor of {hidden}")
    return DFlash2Config(
        own.size("conv_kernel_size"),
        own.size("conv_group_size"),
        own.size("selector_rank"),
        own.size("selector_top_k", most=vocab),
    )


def _markov(fields: ConfigReader) -> MarkovConfig:
    vocab = fields.size("vocab_size")
    fields.value("draft_vocab_size", lambda size: size == vocab, f"vocab_size, {vocab}", vocab)
    allowed = f"one of {', '.join(MARKOV_KINDS)}"
    return MarkovConfig(
        fields.value("markov_head_type", lambda kind: kind in MARKOV_KINDS, allowed, MARKOV_KINDS[0]),
        fields.size("markov_rank"),
        fields.flag("enable_confidence_head", False),
        fields.flag("confidence_head_with_markov", True),
    )


def _behind(fields: ConfigReader, name: str) -> tuple[int, ...] | None:
    """Convert ids of layers whose output is captured to states: a layer's output is the next layer's input state."""
    ids = fields.layer_ids(name)
    return None if ids is None else tuple(i + 1 for i in ids)


def _spread(target_layers: int, layers: int) -> tuple[int, ...]:
    """DFLASH's default: as many states as the draft has layers, from layer 1's output to the third-last layer's."""
    if layers == 1:
        return (target_layers // 2 + 1,)
    last = target_layers - 3
    return tuple(round(1 + i * (last - 1) / (layers - 1)) + 1 for i in range(layers))
